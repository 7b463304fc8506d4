// Before the gateway is stopped: its clients leave, its queues go to another broker, and the progress of that.

import { act, look } from '../api.js';
import { asked, confirmed } from '../dialogs.js';
import { button, el, facts, setText, tag } from '../dom.js';
import * as format from '../format.js';
import { tell } from '../notices.js';
import { every } from '../poll.js';
import { Table } from '../table.js';
import { seen } from '../watch.js';
import { addressOf } from './destinations/destinations.js';

const EVERY_MS = 2000;
const TIMES = [['10', '10 seconds'], ['30', '30 seconds'], ['60', 'a minute'], ['300', '5 minutes'], ['1800', '30 minutes'], ['86400', 'a day']];
const PHASES = { waiting: 'starts when all clients have left', moving: 'queues are being moved', done: 'done: no queue has anything more that can go', failed: 'failed: start it again' };
const KINDS = {
  'empty-subscriptions': 'subscriptions without messages', sessions: 'sessions', retained: 'retained messages', wills: 'wills', branches: 'prepared transactions',
};

export function show(root, _place, signal) {
  let state = null;
  const problem = el('p', { class: 'problem', role: 'alert', id: 'drain-problem' });
  const tags = el('span', { class: 'tags' });
  const what = el('p');
  const begin = button('Drain …', ask, { class: 'danger', disabled: true });
  const end = button('Let clients in again …', letIn, { class: 'primary', hidden: true });
  const numbers = el('div');
  const clients = new Table({ caption: 'Clients that it waits for', key: (row) => String(row.connection), columns: CLIENTS, empty: 'None: clients that are still connected leave at once.' });
  const waited = el('section', { class: 'card', hidden: true }, el('h2', {}, 'Clients that it waits for'), clients.element);
  const handing = handOverCard();
  root.append(el('div', { class: 'head' }, el('h1', {}, 'Drain'), tags), problem, what, el('div', { class: 'actions' }, end, begin),
    el('section', { class: 'card', 'aria-label': 'Now' }, numbers), waited, handing.element);

  async function load() {
    try {
      shown(await look('show-drain', {}, signal));
      setText(problem, '');
      able(true);
    } catch (error) {
      if (signal.aborted) return;
      setText(problem, error.message);
      if (error.status === 403) able(false);
    }
  }

  /** Users who may not drain see the state, and why they may not. */
  function able(isAble) {
    for (const item of [begin, end]) {
      item.disabled = !isAble;
      if (isAble) item.removeAttribute('aria-describedby');
      else item.setAttribute('aria-describedby', problem.id);
    }
  }

  function shown(found) {
    state = found;
    const isDraining = found.is_draining;
    tags.replaceChildren(isDraining ? (found.connections ? tag('draining', 'warn') : tag('drained', 'warn')) : tag('clients are let in', 'good'));
    setText(what, isDraining
      ? (found.connections ? 'No client is let in. Those still connected receive nothing more, and leave when they have finished their work.' : 'No client is connected, and none is let in.')
      : 'Before the gateway is stopped: no client is let in any more, and those connected can finish their work. Its queues can be handed over to another broker.');
    setText(begin, isDraining ? 'Change …' : 'Drain …');
    begin.className = isDraining ? '' : 'danger';
    end.hidden = !isDraining;
    numbers.replaceChildren(nowOf(found));
    waited.hidden = !isDraining || !found.connections;
    clients.update(found.still_here);
    handing.update(found.hand_over);
  }

  async function ask() {
    const { server_reference: reference, is_moved: isMoved, hand_over: now, bridges } = state;
    const choices = bridges.map(({ name, remote, problem: why }) => [name, why ? `${name}: ${why}` : `to ${remote}, over bridge ${name}`, Boolean(why)]);
    const values = await asked({
      title: state.is_draining ? 'Change how it is drained' : 'Drain the gateway', action: 'Continue …', fields: [
        { name: 'server_reference', label: 'Where clients should go', value: reference, hint: 'host:port, which MQTT 5.0 and STOMP clients are told. Empty: they are told nothing.' },
        { name: 'is_moved', label: 'For good: they need not come back', kind: 'check', value: isMoved },
        { name: 'timeout_s', label: 'Time to finish their work', kind: 'choice', options: TIMES, value: '30', hint: 'After that they are disconnected anyway; their messages in flight stay in the queues.' },
        {
          name: 'hand_over', label: 'Messages in queues', kind: 'choice', options: [['', 'stay here'], ...choices], value: now?.bridge,
          hint: bridges.length ? 'They go when the clients have left, and are acknowledged here once the other broker has confirmed them.' : 'They could go to another broker over a bridge, but none is configured ([[extensions]] with plugin = "bridge").',
        },
      ],
      // "Cancel" in the confirmation leads back to the entered values.
      submit: async ({ timeout_s: seconds, ...entered }) => {
        if (!await sure(seconds, entered)) throw new Error('');
        return act('drain', { ...entered, timeout_s: Number(seconds) });
      },
    });
    if (!values) return;
    tell(values.connections ? `The gateway is drained; ${format.counted(values.connections, 'client')} ${values.connections === 1 ? 'is' : 'are'} still connected.` : 'The gateway is drained; no client is connected.');
    shown(values);
  }

  function sure(seconds, { server_reference: reference, is_moved: isMoved, hand_over: bridge }) {
    const { connections, in_flight: flying, hand_over: now, bridges } = state;
    const backlog = seen.overview?.backlog ?? 0;
    const lines = [
      `No client is let in any more. ${connections === 1 ? 'The one that is' : `The ${format.count(connections)} that are`} connected now can acknowledge what they have (${format.counted(flying, 'message')}), finish transactions and publish, `
        + `and are disconnected when that is done, or after ${TIMES.find(([value]) => value === seconds)[1]}. Their messages in flight then stay in the queues.`,
      reference ? `They are told to use ${reference}${isMoved ? ', for good' : ''}.` : 'They are not told where to go.',
      bridge && `Then all messages in queues go to ${bridges.find(({ name }) => name === bridge).remote} over bridge ${bridge}, and are no longer here. ${format.counted(backlog, 'message')} ${backlog === 1 ? 'is' : 'are'} kept now.`,
      now && now.bridge !== bridge && `The hand-over by bridge ${now.bridge} ends; what it has not sent stays in its queues.`,
      'It lasts until you let clients in again, or the gateway is stopped. Operators can still connect.',
    ];
    return confirmed({ title: `Drain ${seen.overview?.name || 'the gateway'}?`, text: lines.filter(Boolean), action: 'Drain', isDangerous: true });
  }

  async function letIn() {
    const { hand_over: now } = state;
    const values = await asked({
      title: 'Let clients in again?', action: 'Let clients in', fields: [], text: [
        'Clients can connect again, and those that have not left are served again.',
        ...(now ? [`The hand-over by bridge ${now.bridge} ends: it waits some seconds for what was sent; the rest stays in its queues here. Messages that were moved do not come back.`] : []),
      ],
      submit: () => act('undrain', {}),
    });
    if (!values) return;
    tell('Clients are let in again.');
    shown(values);
  }

  every(EVERY_MS, load, signal);
}

function nowOf(found) {
  const isOver = found.ends_at && found.ends_at <= Date.now() * 1000;
  return facts([
    ['Since', found.since && `${format.moment(found.since)} (${format.ago(found.since)})`],
    ['Clients have until', found.is_draining && found.connections > 0 && `${format.moment(found.ends_at)}${isOver ? ', which has passed' : ''}`],
    ['Clients', format.counted(found.connections, 'client')],
    ['Not acknowledged by them', format.counted(found.in_flight, 'message')],
    ['They are told to use', found.is_draining && (found.server_reference ? `${found.server_reference}${found.is_moved ? ', for good' : ''}` : 'no other server')],
    ['Queues', found.is_draining && !found.hand_over && 'stay here'],
  ].filter(([, value]) => value !== 0), 'row');
}

const CLIENTS = [
  { head: 'Client', cell: (row) => [{ text: row.client_id || `number ${row.connection}`, href: `#/connection/${row.connection}`, kind: 'name' }] },
  { head: 'User', cell: (row) => row.principal },
  { head: 'Address', cell: (row) => [{ text: row.address, kind: 'digits' }] },
  { head: 'To acknowledge', isNumber: true, cell: (row) => format.counted(row.in_flight, 'message') },
  { head: 'To finish', isNumber: true, cell: (row) => format.counted(row.transactions, 'transaction') },
];

const LEFT = [
  { head: 'What', cell: (row) => KINDS[row.kind] ?? row.kind },
  { head: 'Name', cell: (row) => (row.kind === 'queue' ? [{ text: row.name, href: addressOf(row.name), kind: 'name' }] : [{ text: row.name, kind: 'name' }]) },
  { head: 'Count', isNumber: true, cell: (row) => format.count(row.count) },
  { head: 'Why, and what to do', cell: (row) => row.why },
];

/** What goes to another broker, its progress, and what stays. */
function handOverCard() {
  const problem = el('p', { class: 'alarm', role: 'alert', hidden: true });
  const bar = el('span', { class: 'meter', role: 'progressbar', 'aria-label': 'Handed over', 'aria-valuemin': '0', 'aria-valuemax': '100' }, el('span'));
  const numbers = el('div');
  const left = new Table({ caption: 'What stays here', key: (row) => `${row.kind} ${row.name}`, columns: LEFT, empty: 'Nothing that is known.' });
  const more = el('p', { class: 'quiet' });
  const element = el('section', { class: 'card', hidden: true }, el('h2', {}, 'Queues handed over'), problem, bar, numbers, el('h3', {}, 'What stays here'), left.element, more);
  function update(found) {
    element.hidden = !found;
    if (!found) return;
    const text = found.problem ? `${found.problem}: ${found.remedy}` : '';
    problem.hidden = Boolean(!text || found.server);
    setText(problem, found.server ? '' : text);
    const whole = found.moved + found.messages;
    const share = whole ? found.moved / whole : found.phase === 'done' ? 1 : 0;
    bar.firstChild.style.width = `${share * 100}%`;
    bar.setAttribute('aria-valuenow', Math.floor(share * 100));
    bar.setAttribute('aria-valuetext', `${format.count(found.moved)} of ${format.counted(whole, 'message')}`);
    numbers.replaceChildren(facts([
      ['State', PHASES[found.phase] ?? found.phase],
      ['Over bridge', `${found.bridge}, ${found.server ? `connected to ${found.server}` : 'not connected'}`],
      ['Handed over', `${format.counted(found.moved, 'message')}, ${format.bytes(found.moved_bytes)}`],
      ['Can still go', `${format.counted(found.messages, 'message')} in ${format.counted(found.queues, 'queue')}`],
      ['Last problem', found.server && text && `over${found.problem_at ? `, ${format.ago(found.problem_at)}` : ''}: ${text}`],
    ], 'row'));
    left.update(found.left);
    setText(more, found.left_more ? `And ${format.count(found.left_more)} more.` : '');
  }
  return { element, update };
}
