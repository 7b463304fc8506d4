// The sinks' progress, what they did last, what is wrong with them and what to do.

import { act, look } from '../api.js';
import { button, el, facts, tag } from '../dom.js';
import * as format from '../format.js';
import { complain, tell } from '../notices.js';
import { every } from '../poll.js';

const EVERY_MS = 3000;
const STATES = { running: 'good', asleep: '', starting: 'warn', failing: 'bad', stopped: 'bad' };

export function show(root, _place, signal) {
  const problem = el('p', { class: 'problem', role: 'alert' });
  const all = el('div', { class: 'columns' });
  const known = new Map();
  root.append(el('h1', {}, 'Sinks'), problem, all);
  every(EVERY_MS, async () => {
    try {
      const { rows } = await look('list-sinks', {}, signal);
      // One request each: a list has only the latest problem.
      const details = await Promise.all(rows.map(({ name }) => look('show-sink', { sink: name }, signal)));
      problem.textContent = '';
      if (!rows.length) all.replaceChildren(el('p', { class: 'empty card' }, 'There are no sinks. With one, every acknowledged message becomes a row of a table: add [[sinks]] to the configuration.'));
      for (const { status } of details) {
        if (!known.has(status.name)) {
          const made = card(status.name);
          known.set(status.name, made);
          all.append(made.element);
        }
        known.get(status.name).update(status);
      }
    } catch (error) {
      if (!signal.aborted) problem.textContent = error.message;
    }
  }, signal);
}

function card(name) {
  const head = el('span', { class: 'tags' });
  const body = el('div', { class: 'sink' });
  const errors = el('ol', { class: 'errors' });
  const past = el('details', {}, el('summary', {}, 'Recent problems, including past ones'), errors);
  const element = el('section', { class: 'card', 'aria-label': `Sink ${name}` },
    el('div', { class: 'head' }, el('h2', {}, name), head, button('Tidy its target now', () => tidy(name))), body, past);
  function update(row) {
    const { health } = row;
    head.replaceChildren(tag(health.state, STATES[health.state]), ...(health.is_late ? [tag('late', 'warn')] : []));
    body.replaceChildren(...shown(row));
    past.hidden = health.problems.length === 0;
    errors.replaceChildren(...health.problems.map(({ at, text }) => el('li', {}, el('span', { class: 'quiet' }, `${format.moment(at)} `), text)));
  }
  return { element, update };
}

function shown(row) {
  const { health } = row;
  const commit = health.last_commit;
  const { upkeep } = health;
  return [
    health.problem && el('p', { class: 'alarm', role: 'alert' }, health.problem),
    facts([
      ['Behind', `${format.counted(row.lag_rows, 'message')}, ${format.bytes(row.lag_bytes)}`],
      ['Oldest of them', row.lag_seconds === null ? 'unknown' : row.lag_seconds ? `${format.duration(row.lag_seconds)} old` : 'none'],
      ['Rows a second', format.rate(health.rows_per_second)],
      ['Last commit', commit && `${format.ago(commit.at)}: ${format.counted(commit.rows, 'row')} in ${format.duration(commit.seconds)}, version ${commit.version}`],
      ['Target', health.target && el('code', {}, health.target)],
      ['Files of the target', health.target_files === null ? null : format.count(health.target_files)],
      ['Staged', `${format.counted(health.staged_rows, 'row')}, ${format.bytes(health.staged_bytes)}`],
      ['Kept by the log', `${format.counted(row.log_rows, 'row')}, ${format.bytes(row.log_bytes)}, ${format.percent(row.log_share)} of its limit`],
      ['Dead-letter table', health.dead_rows === null ? null : format.counted(health.dead_rows, 'row')],
      ['Last upkeep', upkeep && (upkeep.problem || `${format.ago(upkeep.at)}: ${format.count(upkeep.files_removed)} files became ${format.count(upkeep.files_added)}`)],
    ]),
  ].filter(Boolean);
}

async function tidy(sink) {
  try {
    await act('compact-sink', { sink });
    tell(`${sink} is tidying its target; "Last upkeep" shows when it is done.`);
  } catch (error) {
    complain(error);
  }
}
