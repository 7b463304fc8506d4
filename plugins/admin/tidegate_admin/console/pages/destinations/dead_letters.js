// Queues of messages that nobody could handle, and the contents of one by origin and reason.

import { goOver, look } from '../../api.js';
import { KEEP, asked, followed, keptUntil } from '../../dialogs.js';
import { button, el, setText } from '../../dom.js';
import * as format from '../../format.js';
import { complain, tell } from '../../notices.js';
import { every } from '../../poll.js';
import { Pager, Table } from '../../table.js';
import { addressOf, tagsOf } from './destinations.js';

const EVERY_MS = 5000;
const ROWS = 50;
/** Messages counted in one request, and before the user is asked whether to go on. */
const COUNTED_MAX = 20_000;
const COUNTED_AT_FIRST = 200_000;

const COLUMNS = [
  { head: 'Queue', cell: (row) => [{ text: row.destination, href: addressOf(row.destination, true), kind: 'name' }] },
  { head: 'Dead letters', isNumber: true, cell: (row) => format.count(row.pending) },
  { head: 'Consumers', isNumber: true, cell: (row) => format.count(row.consumers) },
  { head: 'State', cell: tagsOf },
];

export function show(root, _place, signal) {
  const problem = el('p', { class: 'problem', role: 'alert' });
  const table = new Table({
    caption: 'Queues of dead letters', columns: COLUMNS, key: (row) => row.destination,
    empty: 'There are no dead letters: no queue exists that the policies name for them.',
  });
  const pager = new Pager(() => refresh());
  root.append(el('h1', {}, 'Dead letters'),
    el('p', { class: 'quiet' }, 'Messages that were rejected too often, or that a limit dropped with dead-lettering on. Each says where it comes from and why it is here; '
      + 'you can send all or some of them back, move them elsewhere, or purge them.'),
    problem, table.element, pager.element);
  async function load() {
    try {
      const page = await look('list-destinations', { dead_letters: true, sort: 'pending', after: pager.after, limit: ROWS }, signal);
      problem.textContent = '';
      table.update(page.rows);
      pager.update(page.next, '');
    } catch (error) {
      if (!signal.aborted) problem.textContent = error.message;
    }
  }
  const refresh = every(EVERY_MS, load, signal);
}

const GROUPS = [
  { head: 'From', cell: (row) => [{ text: row.origin || 'unknown', kind: 'name' }] },
  { head: 'Why', cell: (row) => row.reason || 'unknown' },
  { head: 'Messages', isNumber: true, cell: (row) => format.count(row.count) },
  { head: 'Bodies', isNumber: true, cell: (row) => format.bytes(row.size) },
  { head: 'The first', cell: (row) => [{ text: format.ago(row.first_at), title: format.moment(row.first_at) }] },
  { head: 'The last', cell: (row) => [{ text: format.ago(row.last_at), title: format.moment(row.last_at) }] },
];

const keyOf = (row) => `${row.origin || 'unknown'}: ${row.reason || 'unknown'}`;

/**
* A card with the dead letters of a queue in groups, which can be sent back or purged. only: shows those that a selector selects;
 * changed: called after a change. Returns {element, load}.
 */
export function groups(destination, { signal, only, changed }) {
  const chosen = new Set();
  let found = new Map();
  let asking = null;
  const table = new Table({ caption: 'Why they are here', columns: GROUPS, key: keyOf, chosen, choose: showChosen, empty: 'There are no messages.' });
  const state = el('p', { class: 'quiet', role: 'status' });
  const problem = el('p', { class: 'problem', role: 'alert' });
  const onward = button('Continue counting', () => count(Infinity));
  const some = el('div', { class: 'actions', role: 'toolbar', 'aria-label': 'Chosen groups' });
  const element = el('section', { class: 'card' },
    el('div', { class: 'head' }, el('h2', {}, 'Why they are here'), button('Count again', () => load())),
    problem, some, table.element, el('div', { class: 'actions' }, state, onward));
  let rest = null;
  let counted = 0;

  /** Count from the beginning. Ends a running count. */
  function load() {
    asking?.abort();
    rest = { after: 0, through: 0 };
    found = new Map();
    return count(COUNTED_AT_FIRST);
  }

  async function count(most) {
    const mine = new AbortController();
    asking = mine;
    onward.hidden = true;
    let looked = [...found.values()].reduce((sum, row) => sum + row.count, 0);
    const until = looked + most;
    try {
      let isComplete = false;
      while (!isComplete && looked < until) {
        const answer = await look('count-dead-letters', { destination, ...rest, count_max: COUNTED_MAX }, AbortSignal.any([signal, mine.signal]));
        for (const group of answer.groups) found.set(keyOf(group), together(found.get(keyOf(group)), group));
        looked += answer.count;
        isComplete = answer.is_complete;
        rest = { after: answer.after, through: answer.through };
        counted = isComplete ? answer.through : answer.after;
        show(looked, isComplete);
      }
      onward.hidden = isComplete;
    } catch (error) {
      if (!signal.aborted && !mine.signal.aborted) problem.textContent = error.message;
    }
  }

  function show(looked, isComplete) {
    problem.textContent = '';
    table.update([...found.values()].sort((a, b) => b.count - a.count || keyOf(a).localeCompare(keyOf(b))));
    setText(state, isComplete ? `${format.counted(looked, 'message')} in ${format.counted(found.size, 'group')}.`
      : `Of the first ${format.counted(looked, 'message')}; there are more.`);
    showChosen();
  }

  function showChosen() {
    const rows = wanted();
    some.hidden = rows.length === 0;
    if (some.hidden) return;
    const many = format.counted(rows.reduce((sum, row) => sum + row.count, 0), 'message');
    const buttons = [button('Retry groups …', retry, { class: 'primary' }), button('Purge groups …', purge, { class: 'danger' })];
    if (rows.length === 1) buttons.unshift(button('Show them', () => only(rows[0].selector)));
    // Rebuilt only when the text changes, so that the focus stays.
    const text = `${format.counted(rows.length, 'chosen group')}, ${many}:`;
    if (some.firstElementChild?.textContent === text) return;
    some.replaceChildren(el('span', { role: 'status' }, text), ...buttons);
  }

  /** Chosen groups, without those whose headers are too long for a selector: they are handled message by message. */
  function wanted() {
    return [...chosen].map((key) => found.get(key)).filter((row) => row && row.selector !== null);
  }

  async function retry() {
    const rows = wanted();
    const values = await asked({
      title: `Retry ${format.counted(rows.length, 'group')} of ${destination}`, action: 'Retry',
      text: [...rows.map((row) => `${format.counted(row.count, 'message')} from ${row.origin || 'unknown'}: ${row.reason || 'unknown'}`),
        'Each goes back to the end of the queue that it comes from, and can be delivered again as often as a new one.'],
      fields: [{ name: 'most', label: 'At most', kind: 'number', value: '', hint: 'How many messages of each group, the oldest first. Empty: all.' }],
    });
    if (values) await each(rows, 'retry-messages', { count_max: values.most }, 'moved back');
  }

  async function purge() {
    const rows = wanted();
    const many = format.counted(rows.reduce((sum, row) => sum + row.count, 0), 'message');
    const values = await asked({
      title: `Purge ${many}?`, isDangerous: true, action: `Purge ${many}`, fields: [KEEP],
      text: rows.map((row) => `${format.counted(row.count, 'message')} from ${row.origin || 'unknown'}: ${row.reason || 'unknown'}`),
    });
    if (values) await each(rows, 'purge-destination', { keep_until: keptUntil(values.keep) }, 'purged');
  }

  /** Only the counted messages of each group. */
  async function each(rows, request, fields, past) {
    let count = 0;
    const notes = new Set();
    const through = counted;
    try {
      await followed(`${destination}: messages are being ${past}`, async (told, stop) => {
        for (const { selector } of rows) {
          if (stop.aborted) break;
          const before = count;
          const done = await goOver(request, { destination, selector, through, ...fields }, (number) => {
            count = before + number;
            told(`${format.counted(count, 'message')} so far`);
          }, stop);
          if (done.note) notes.add(done.note);
        }
      });
    } catch (error) {
      complain(error);
    }
    tell([`${format.counted(count, 'message')} of ${destination} ${count === 1 ? 'was' : 'were'} ${past}.`, ...notes].join(' '));
    chosen.clear();
    await load();
    changed();
  }

  showChosen();
  return { element, load };
}

function together(one, other) {
  if (!one) return other;
  return {
    ...one, count: one.count + other.count, size: one.size + other.size,
    first_at: Math.min(one.first_at, other.first_at), last_at: Math.max(one.last_at, other.last_at),
  };
}
