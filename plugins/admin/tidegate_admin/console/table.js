// A table that is updated in place: focus and selection stay.

import { el } from './dom.js';

/**
 * columns: [{head, sort, isNumber, cell: row => parts}]. Parts are texts or {text, href, kind, title}.
 * key: row => text. sorting: {by, set(by)} for columns with sort. chosen: a Set of keys, for a column of checkboxes.
 */
export class Table {
  constructor({ caption, columns, key, empty, sorting, chosen, choose }) {
    this.columns = columns;
    this.key = key;
    this.rows = new Map();
    this.chosen = chosen;
    this.choose = choose;
    this.heads = columns.map((column) => this.head(column, sorting));
    this.all = el('input', { type: 'checkbox', 'aria-label': 'All on this page', onchange: () => this.chooseAll() });
    this.body = el('tbody');
    this.empty = el('p', { class: 'empty', hidden: true }, empty); // unknown before the first answer
    const headRow = el('tr', {}, chosen && el('td', { class: 'check' }, this.all), this.heads);
    this.table = el('table', {}, el('caption', { class: 'unseen' }, caption), el('thead', {}, headRow), this.body);
    this.element = el('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': caption }, this.table, this.empty);
  }

  head(column, sorting) {
    const isSorted = sorting && column.sort && sorting.by === column.sort;
    const name = sorting && column.sort
      ? el('button', { type: 'button', class: 'plain', onclick: () => sorting.set(column.sort) }, column.head, isSorted ? (column.isNumber ? ' ↓' : ' ↑') : '')
      : column.head;
    const order = isSorted ? (column.isNumber ? 'descending' : 'ascending') : null;
    return el('th', { scope: 'col', class: column.isNumber ? 'number' : null, 'aria-sort': order }, name);
  }

  update(rows) {
    const wanted = new Map(rows.map((row) => [this.key(row), row]));
    for (const [key, known] of this.rows) {
      if (wanted.has(key)) continue;
      known.element.remove();
      this.rows.delete(key);
      this.chosen?.delete(key);
    }
    let place = this.body.firstElementChild;
    for (const [key, row] of wanted) {
      const known = this.rows.get(key) ?? this.made(key);
      this.fill(known, row);
      if (known.element === place) place = place.nextElementSibling;
      else this.body.insertBefore(known.element, place);
    }
    this.empty.hidden = rows.length > 0;
    this.table.hidden = rows.length === 0;
    this.showChosen();
  }

  made(key) {
    const cells = this.columns.map((column, index) => el(index ? 'td' : 'th', { class: column.isNumber ? 'number' : null, scope: index ? null : 'row' }));
    const check = this.chosen && el('input', { type: 'checkbox', 'aria-label': `Choose ${key}`, onchange: () => this.chooseOne(key, check.checked) });
    const known = { element: el('tr', {}, check && el('td', { class: 'check' }, check), cells), cells, check, shown: [] };
    this.rows.set(key, known);
    return known;
  }

  fill(known, row) {
    this.columns.forEach((column, index) => {
      const parts = [column.cell(row)].flat();
      const shown = JSON.stringify(parts);
      if (known.shown[index] === shown) return;
      known.shown[index] = shown;
      known.cells[index].replaceChildren(...parts.filter((part) => part !== '').map(rendered));
    });
  }

  chooseOne(key, isChosen) {
    if (isChosen) this.chosen.add(key);
    else this.chosen.delete(key);
    this.showChosen();
    this.choose?.();
  }

  chooseAll() {
    for (const key of this.rows.keys()) {
      if (this.all.checked) this.chosen.add(key);
      else this.chosen.delete(key);
    }
    this.showChosen();
    this.choose?.();
  }

  showChosen() {
    if (!this.chosen) return;
    for (const [key, known] of this.rows) {
      known.check.checked = this.chosen.has(key);
      known.element.classList.toggle('chosen', known.check.checked);
    }
    this.all.checked = this.rows.size > 0 && this.chosen.size === this.rows.size;
    this.all.indeterminate = this.chosen.size > 0 && !this.all.checked;
  }
}

function rendered(part) {
  if (typeof part === 'string') return part;
  if (part.href) return el('a', { href: part.href, class: part.kind, title: part.title }, part.text);
  return el('span', { class: part.kind, title: part.title }, part.text);
}

/** Buttons for a list that knows only its next page: earlier ones are remembered. */
export class Pager {
  /** load: called to load the page that begins at `after`. first: the `after` of the first page. */
  constructor(load, first = '') {
    this.first = first;
    this.before = [];
    this.after = first;
    this.next = first;
    this.back = el('button', { type: 'button', onclick: () => this.go(this.before.pop(), false) }, '← Previous');
    this.onward = el('button', { type: 'button', onclick: () => this.go(this.next, true) }, 'Next →');
    this.text = el('span', { class: 'quiet', role: 'status' });
    this.element = el('nav', { class: 'pager', 'aria-label': 'Pages' }, this.back, this.text, this.onward);
    this.element.hidden = true;
    this.load = load;
  }

  go(after, isForward) {
    if (isForward) this.before.push(this.after);
    this.after = after;
    this.load();
  }

  /** Return to the first page. */
  restart() {
    this.before = [];
    this.after = this.first;
  }

  /** next: the answer's; text: what the page shows. */
  update(next, text) {
    this.next = next;
    this.back.disabled = this.before.length === 0;
    this.onward.disabled = next === this.first;
    if (this.text.textContent !== text) this.text.textContent = text;
    this.element.hidden = this.back.disabled && this.onward.disabled && !text;
  }
}
