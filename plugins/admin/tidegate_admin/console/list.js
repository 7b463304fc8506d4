// A page with one list of the contract: searched, sorted and paged by the gateway. The search is in the address,
// so that "back" returns to it and a link leads to it.

import { look } from './api.js';
import { el, setText } from './dom.js';
import * as format from './format.js';
import { every } from './poll.js';
import { Pager, Table } from './table.js';

const EVERY_MS = 5000;
const ROWS = 50;

/**
* page: in the address; request: its tag; sorts: [[value, label]], the first is the default; choices: further filters,
 * [{name, label, options}]; fields: turns the input into the request's fields; nothing: shown when there is no row; more: a sentence about an answer;
 * level: of the heading.
 */
export function list(root, place, signal, { page, title, request, columns, key, sorts, choices = [], fields = (values) => values, hint, placeholder, nothing, head = [], level = 'h1', more = () => '' }) {
  const { query } = place;
  const by = chosen(sorts, query.get('sort'));
  const values = Object.fromEntries(choices.map(({ name, options }) => [name, chosen(options, query.get(name))]));
  const text = query.get('match') ?? '';

  function go(changed) {
    const entered = Object.fromEntries(choices.map(({ name }, index) => [name, inputs[index].value]));
    const asked = { match: search.value.trim(), ...entered, sort: by, ...changed };
    const wanted = new URLSearchParams(Object.entries(asked).filter(([name, value]) => value && !(name === 'sort' && value === sorts[0][0])));
    location.hash = `#/${page}${wanted.size ? `?${wanted}` : ''}`;
  }

  const search = el('input', { type: 'search', id: 'match', placeholder, spellcheck: 'false', 'aria-describedby': 'match-hint', onchange: () => go({}) });
  search.value = text;
  const inputs = choices.map(({ name, label, options }) => select(label, options, values[name], () => go({})));
  const order = select('Order', sorts, by, () => go({ sort: order.value }));
  const table = new Table({ caption: title, columns, key, sorting: { by, set: (sort) => go({ sort }) }, empty: text || Object.values(values).some(Boolean) ? 'Nothing matches.' : nothing });
  const pager = new Pager(() => refresh());
  const problem = el('p', { class: 'problem', role: 'alert' });
  const besides = el('p', { class: 'quiet', role: 'status' });

  root.append(
    el('div', { class: 'head' }, el(level, {}, title), head),
    el('form', { class: 'tools', role: 'search', onsubmit: (event) => {
      event.preventDefault();
      go({});
    } }, el('label', { for: 'match' }, 'Search'), search, inputs, sorts.length > 1 && order, el('button', { type: 'submit' }, 'Find'),
    el('small', { id: 'match-hint' }, `${hint} Press / to search.`)),
    problem, besides, table.element, pager.element);

  let asking = 0;
  async function load() {
    asking += 1;
    const number = asking;
    try {
      const found = await look(request, { ...fields({ match: text, ...values }), sort: by, after: pager.after, limit: ROWS }, signal);
      if (number !== asking) return;
      problem.textContent = '';
      table.update(found.rows);
      setText(besides, more(found));
      const first = pager.before.length * ROWS + 1;
      pager.update(found.next, found.rows.length ? `${format.count(first)} to ${format.count(first + found.rows.length - 1)}` : '');
    } catch (error) {
      if (!signal.aborted) problem.textContent = error.message;
    }
  }
  const refresh = every(EVERY_MS, load, signal);
  return refresh;
}

function chosen(options, value) {
  return options.some(([name]) => name === value) ? value : options[0][0];
}

function select(label, options, value, onchange) {
  const made = el('select', { 'aria-label': label, onchange }, options.map(([name, text]) => el('option', { value: name }, text)));
  made.value = value;
  return made;
}
