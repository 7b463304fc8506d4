// Who may do what, by which rule, and who is known.

import { look } from '../api.js';
import { el } from '../dom.js';
import * as format from '../format.js';
import { list } from '../list.js';
import { Pager, Table } from '../table.js';

const ROWS = 50;
const WORDS = { allow: 'allowed', filter: 'allowed in part', deny: 'refused' };
const ACTIONS = ['connect', 'publish', 'retain', 'subscribe', 'consume', 'browse', 'create', 'delete', 'admin'];
const KINDS = { allow: 'good', filter: 'warn', deny: 'bad' };

export const access = { show(root, place, signal) {
  const user = field('user', 'User', place.query.get('user') ?? '', 'anonymous');
  const destination = field('destination', 'Destination', place.query.get('destination') ?? '', 'queue://orders');
  const problem = el('p', { class: 'problem', role: 'alert' });
  const summary = el('p', { class: 'quiet', role: 'status' });
  const table = new Table({ caption: 'What they may do', key: (row) => row.action, columns: DECIDED, empty: 'Enter a user to see what they may do and why, a destination to see who may do what there, or both.' });
  table.update([]);
  root.append(el('h1', {}, 'Access'), el('form', { class: 'tools', onsubmit: (event) => {
    event.preventDefault();
    const wanted = new URLSearchParams({ user: user.value.trim(), destination: destination.value.trim() });
    location.hash = `#/access?${wanted}`;
  } }, el('label', { for: 'user' }, 'User'), user, el('label', { for: 'destination' }, 'Destination'), destination, el('button', { type: 'submit', class: 'primary' }, 'Show')),
  problem, summary, table.element);
  root.append(el('p', { class: 'actions' }, el('a', { href: '#/users' }, 'All users'), el('a', { href: '#/access' }, 'All rules')));
  everybody(root, destination.value, signal);
  if (!user.value && !destination.value) rules(root, place, signal);
  if (!user.value) return;
  look('explain-access', { user: user.value, destination: destination.value }, signal).then((found) => {
    table.update(found.decided);
    summary.textContent = `${found.user}${found.groups.length ? `, in ${found.groups.join(', ')}` : ', in no group'}`;
  }).catch((error) => {
    if (!signal.aborted) problem.textContent = error.message;
  });
} };

function field(id, label, value, placeholder) {
  const made = el('input', { id, type: 'text', 'aria-label': label, placeholder, spellcheck: 'false', autocomplete: 'off' });
  made.value = value;
  return made;
}

/** What everybody may do with *destination*; "": nothing is shown. Below one user's rights; each name links to the reasons. */
function everybody(root, destination, signal) {
  if (!destination) return;
  const problem = el('p', { class: 'problem', role: 'alert' });
  const search = el('input', { id: 'match', type: 'search', placeholder: 'ann', spellcheck: 'false', 'aria-describedby': 'match-hint' });
  const place = el('div');
  const pager = new Pager(() => load());
  root.append(el('section', { class: 'card' }, el('h2', {}, 'Who may do what there'),
    el('form', { class: 'tools', role: 'search', onsubmit: (event) => {
      event.preventDefault();
      pager.restart();
      load();
    } }, el('label', { for: 'match' }, 'Search'), search, el('button', { type: 'submit' }, 'Find'),
    el('small', { id: 'match-hint' }, 'Any part of a user\'s name. Listed and connected users, and anonymous; checked without client id and address, which rules may depend on.')),
    problem, place, pager.element));
  let table = null;
  async function load() {
    try {
      const found = await look('list-access', { destination, match: search.value.trim(), after: pager.after, limit: ROWS }, signal);
      problem.textContent = '';
      if (!table) {
        const actions = Object.keys(found.rows[0]?.verdicts ?? {});
        table = new Table({ caption: 'Who may do what there', key: (row) => row.user, columns: columnsOf(actions, destination), empty: 'No user matches.' });
        place.replaceChildren(table.element);
      }
      table.update(found.rows);
      const first = pager.before.length * ROWS + 1;
      pager.update(found.next, found.rows.length ? `${format.count(first)} to ${format.count(first + found.rows.length - 1)}` : '');
    } catch (error) {
      if (!signal.aborted) problem.textContent = error.message;
    }
  }
  load();
}

function columnsOf(actions, destination) {
  return [
    { head: 'User', cell: (row) => [{ text: row.user, href: `#/access?${new URLSearchParams({ user: row.user, destination })}`, kind: 'name' }] },
    { head: 'Groups', cell: (row) => row.groups.join(', ') },
    { head: 'Connections', isNumber: true, cell: (row) => format.count(row.connections) },
    ...actions.map((action) => ({ head: action, cell: (row) => [verdictOf(row.verdicts[action])] })),
  ];
}

function verdictOf(verdict) {
  return { text: WORDS[verdict] ?? verdict, kind: `tag ${KINDS[verdict] ?? ''}` };
}

/** The rules themselves, in the order in which they are checked. */
const rules = (root, place, signal) => list(root, place, signal, {
  page: 'access', title: 'Rules', level: 'h2', request: 'list-rules', key: (row) => `${row.authorizer} ${row.number}`, columns: [
    { head: 'Rule', isNumber: true, cell: (row) => String(row.number) },
    { head: 'Says', cell: (row) => [{ text: row.allows ? 'allow' : 'deny', kind: `tag ${row.allows ? 'good' : 'bad'}` }] },
    { head: 'Actions', cell: (row) => row.actions.join(', ') },
    { head: 'Destinations', cell: (row) => (row.destinations ? [{ text: row.destinations.join(', '), kind: 'name' }] : 'any') },
    { head: 'Who', cell: (row) => Object.entries(row.who).map(([kind, names]) => `${kind.replaceAll('_', ' ')} ${names.join(', ')}`).join('; ') || 'everybody' },
    { head: 'Where', cell: (row) => [{ text: row.line ? `line ${row.line}` : `rule ${row.number}`, title: row.source }] },
    { head: 'Of', cell: (row) => row.authorizer },
  ],
  choices: [{ name: 'action', label: 'Action', options: [['', 'Any action'], ...ACTIONS.map((action) => [action, action])] }],
  sorts: [['', 'Order']], fields: ({ match, action }) => ({ match, action }), hint: 'Any part of a pattern, or of a name in a rule. The first matching rule decides.', nothing: 'There are no rules.',
  more: ({ authorizers, unlisted }) => (authorizers.length ? unlisted.map((name) => `${name} is asked, too, but does not list its rules.`).join(' ') : 'No authorizer is asked, and everything is allowed.'),
});

const DECIDED = [
  { head: 'To', cell: (row) => row.action },
  { head: 'Is', cell: (row) => [verdictOf(row.verdict)] },
  { head: 'Because', cell: (row) => (row.reasons.length
    ? row.reasons.map(({ authorizer, why }) => `${authorizer}: ${why.join('; ') || 'gives no reason'}`).join(' | ')
    : 'no authorizer is asked, and everything is allowed') },
];

export const users = { show: (root, place, signal) => list(root, place, signal, {
  page: 'users', title: 'Users', request: 'list-users', key: (row) => `${row.authenticator} ${row.user}`, columns: [
    { head: 'User', cell: (row) => [{ text: row.user, href: `#/access?${new URLSearchParams({ user: row.user })}`, kind: 'name' }] },
    { head: 'Groups', cell: (row) => row.groups.join(', ') },
    { head: 'Known to', cell: (row) => row.authenticator },
    { head: 'Let in by', cell: (row) => row.checks.join(', ') },
    { head: 'Connections', isNumber: true, cell: (row) => format.count(row.connections) },
  ],
  sorts: [['', 'Name']], hint: 'Any part of the name.', nothing: 'No authenticator lists users.',
}) };
