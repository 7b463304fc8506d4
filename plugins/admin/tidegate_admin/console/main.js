// The frame: who is logged in, the current page, the gateway's state.

import { Problem, events } from './api.js';
import { button, el, setText } from './dom.js';
import { ago } from './format.js';
import { complain, notices } from './notices.js';
import { credentials, forget } from './session.js';
import { seen, watch, watching } from './watch.js';
import { access, users } from './pages/access.js';
import { connection, connections, session, sessions, subscription, subscriptions } from './pages/clients.js';
import * as deadLetters from './pages/destinations/dead_letters.js';
import * as destination from './pages/destinations/destination.js';
import * as destinations from './pages/destinations/destinations.js';
import * as drain from './pages/drain.js';
import * as eventsPage from './pages/events.js';
import { cursors, limits } from './pages/limits.js';
import * as login from './pages/login.js';
import * as memory from './pages/memory.js';
import * as overview from './pages/overview.js';
import { plugins } from './pages/plugins.js';
import * as sinks from './pages/sinks.js';
import { file, store } from './pages/store.js';

/** By the first word after "#/"; those with a label are in the menu. A page's show(root, place, signal) fills root. */
const PAGES = new Map([
  ['overview', { label: 'Overview', page: overview }],
  ['events', { label: 'Events', page: eventsPage }],
  ['destinations', { label: 'Destinations', page: destinations }],
  ['destination', { page: destination, within: 'destinations' }],
  ['dead-letters', { label: 'Dead letters', page: deadLetters }],
  ['dead-letter', { page: destination, within: 'dead-letters' }],
  ['connections', { label: 'Connections', page: connections }],
  ['connection', { page: connection, within: 'connections' }],
  ['sessions', { label: 'Sessions', page: sessions }],
  ['session', { page: session, within: 'sessions' }],
  ['subscriptions', { label: 'Subscriptions', page: subscriptions }],
  ['subscription', { page: subscription, within: 'subscriptions' }],
  ['sinks', { label: 'Sinks', page: sinks }],
  ['memory', { label: 'Memory', page: memory }],
  ['limits', { label: 'Limits', page: limits }],
  ['cursors', { label: 'Cursors', page: cursors }],
  ['store', { label: 'Store', page: store }],
  ['file', { page: file, within: 'store' }],
  ['access', { label: 'Access', page: access }],
  ['users', { page: users, within: 'access' }],
  ['plugins', { label: 'Plugins', page: plugins }],
  ['drain', { label: 'Drain', page: drain }],
]);
const STATES = { running: 'good', 'store-full': 'warn', 'store-failed': 'bad', draining: 'warn', stopping: 'warn' };

const main = el('main', { id: 'main', tabindex: '-1' });
const state = el('span', { class: 'tag', role: 'status' });
const gatewayName = el('strong', { class: 'gateway' });
const alarm = el('p', { class: 'alarm', role: 'alert', hidden: true });
const links = new Map();
/** On every page while the gateway is not as it should be. Always present: screen readers read out only changes in it. */
const notice = el('div', { role: 'status' });
let leaving = null;
let watched = null;
let shown = null;

/** The place in the address: #/page/what?fields. */
function place() {
  const [path, query] = location.hash.replace(/^#\/?/, '').split('?');
  const [page, ...rest] = path.split('/');
  return { page: page || 'overview', what: decoded(rest.join('/')), query: new URLSearchParams(query) };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function frame() {
  const items = [...PAGES].filter(([, { label }]) => label).map(([name, { label }]) => {
    links.set(name, el('a', { href: `#/${name}` }, label));
    return el('li', {}, links.get(name));
  });
  document.body.replaceChildren(
    button('Skip to content', () => main.focus(), { class: 'skip' }),
    el('header', { class: 'bar' },
      el('span', { class: 'brand' }, el('img', { src: 'icon.svg', alt: '', width: '24', height: '24' }), 'Tidegate'),
      gatewayName, state,
      button('Log out', () => logOut(''), { class: 'plain end' })),
    el('nav', { class: 'menu', 'aria-label': 'Pages' }, el('ul', {}, items)),
    el('div', { class: 'content' }, alarm, notice, main), notices);
}

function show(isArrival = false) {
  leaving?.abort();
  leaving = new AbortController();
  const found = place();
  const { page, label, within } = PAGES.get(found.page) ?? PAGES.get('overview');
  for (const [name, link] of links) {
    if (name === (within ?? found.page)) {
      link.setAttribute('aria-current', 'page');
      // On a narrow screen the menu is one long line: show the current item, and something on either side of it.
      const menu = link.closest('nav');
      menu.scrollLeft = link.offsetLeft - (menu.clientWidth - link.offsetWidth) / 2;
    } else link.removeAttribute('aria-current');
  }
  document.title = `${found.what || label || 'Overview'} - Tidegate`;
  const root = el('div');
  // The same page with another search: keep the keyboard focus.
  const isSame = shown?.page === found.page && shown.what === found.what;
  const mark = isSame && main.contains(document.activeElement) ? markOf(document.activeElement) : '';
  shown = found;
  main.replaceChildren(root);
  page.show(root, found, leaving.signal);
  scrollTo(0, 0);
  if (mark) root.querySelector(mark)?.focus();
  if (isArrival || root.contains(document.activeElement)) return;
  // Tell a screen reader where it is now.
  const heading = root.querySelector('h1');
  heading?.setAttribute('tabindex', '-1');
  heading?.focus({ preventScroll: true });
}

/** A selector to find a control again when its page is rebuilt; "": none. */
function markOf(node) {
  if (node.id) return `#${CSS.escape(node.id)}`;
  const label = node.getAttribute('aria-label');
  if (label) return `[aria-label="${CSS.escape(label)}"]`;
  if (node.closest('th')) return 'th[aria-sort] button';
  return node.type === 'submit' ? '[type=submit]' : '';
}

function showState() {
  const { overview: known, ready, problem } = seen;
  const kind = known && !problem ? known.state : (ready?.phase ?? 'unreachable');
  setText(state, problem && ready ? ready.status : kind.replace('-', ' '));
  state.className = `tag ${problem ? 'bad' : STATES[kind] ?? 'warn'}`;
  setText(gatewayName, known?.name ?? '');
  const since = seen.at ? ` The values shown are from ${ago(seen.at * 1000)}.` : '';
  alarm.hidden = !problem;
  setText(alarm, problem ? `${problem}.${since}`.replace('..', '.') : '');
  showNotice(problem ? 'unreachable' : kind, known?.problem);
}

function showNotice(kind, why) {
  const text = why && kind in STATES ? `${kind.replace('-', ' ')}: ${why}.` : '';
  if (notice.dataset.text === text) return;
  notice.dataset.text = text;
  const link = kind === 'draining' && [' ', el('a', { href: '#/drain' }, 'Show progress')];
  notice.replaceChildren(...(text ? [el('p', { class: `alarm ${STATES[kind]}` }, text[0].toUpperCase() + text.slice(1), link || [])] : []));
}

function logOut(why) {
  forget();
  begin(why);
}

function begin(why = '') {
  leaving?.abort();
  watched?.abort();
  watched = null;
  if (credentials() === null) {
    document.title = 'Log in - Tidegate';
    login.show(document.body, why, begin);
    return;
  }
  watched = new AbortController();
  frame();
  watch(watched.signal);
  show(true);
}

addEventListener('hashchange', () => watched && show());
addEventListener('keydown', (event) => {
  // "/" starts a search, as in many consoles.
  const isTyping = event.target.closest?.('input, textarea, select, dialog');
  const search = main.querySelector('input[type=search]');
  if (event.key !== '/' || isTyping || !search || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  search.focus();
});
// A button's request failed: say so, or the user would wonder why nothing happens.
addEventListener('unhandledrejection', (event) => {
  if (!(event.reason instanceof Problem) || event.reason.status === 401) return;
  event.preventDefault();
  complain(event.reason);
});
watching.addEventListener('seen', showState);
events.addEventListener('logged-out', () => watched && logOut('Your credentials are no longer valid.'));
begin();
