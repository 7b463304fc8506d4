// Dialogs before something happens. Escape and "Cancel" mean no.

import { button, el, setText } from './dom.js';
import { gatewayTime } from './watch.js';

/** A field: how long purged messages can be brought back, in seconds; see keptUntil. */
export const KEEP = {
  name: 'keep', label: 'Can be undone', kind: 'choice', options: [['3600', 'for an hour'], ['86400', 'for a day'], ['604800', 'for a week'], ['', 'not at all']],
  hint: 'Until then the messages take up space. Choose "not at all" to free it.',
};

let names = 0;

/** Ask whether to do it; text: exactly what will happen. Resolves to true or false. */
export function confirmed({ title, text, action, isDangerous = false }) {
  return opened({ title, content: [text].flat().map((line) => el('p', {}, line)), action, isDangerous, read: () => true }).then(Boolean);
}

/**
 * Ask for values: fields are [{name, label, kind, value, hint, isRequired, options}], kind one of text, number, area, check,
* choice, whose options are [value, label, is disabled]. Resolves to the values by name, or null. submit: called with them while the dialog is open; errors are shown there.
 */
export function asked({ title, text = [], fields, action, submit, isDangerous = false }) {
  const inputs = new Map();
  const rows = fields.map((field) => {
    const { row, read } = input(field);
    inputs.set(field.name, read);
    return row;
  });
  const read = () => Object.fromEntries([...inputs].map(([name, value]) => [name, value()]));
  const content = [...[text].flat().map((line) => el('p', {}, line)), ...rows];
  return opened({ title, content, action, isDangerous, read, submit });
}

/** A purge's keep_until for this value of KEEP. */
export function keptUntil(keep) {
  return keep ? gatewayTime() + Number(keep) * 1e6 : 0;
}

/** Show the progress of long work; "Stop" aborts the signal that work gets. Resolves as work does. */
export async function followed(title, work) {
  const stop = new AbortController();
  const line = el('p', { role: 'status' }, 'Started …');
  const id = nextId();
  const dialog = el('dialog', { 'aria-labelledby': id, oncancel: (event) => event.preventDefault() },
    el('h2', { id }, title), line, el('div', { class: 'actions' }, button('Stop', () => {
      stop.abort();
      setText(line, 'Stopping …');
    })));
  document.body.append(dialog);
  // No flashing dialog for work that ends at once.
  const timer = setTimeout(() => dialog.showModal(), 400);
  try {
    return await work((text) => setText(line, text), stop.signal);
  } finally {
    clearTimeout(timer);
    dialog.close();
    dialog.remove();
  }
}

function opened({ title, content, action, isDangerous, read, submit }) {
  return new Promise((resolve) => {
    const id = nextId();
    const problem = el('p', { class: 'problem', role: 'alert' });
    const yes = el('button', { type: 'submit', class: isDangerous ? 'danger' : 'primary' }, action);
    const no = button('Cancel', () => end(null));
    const onsubmit = async (event) => {
      event.preventDefault();
      yes.disabled = true;
      try {
        const values = read();
        end(submit ? await submit(values) ?? values : values);
      } catch (error) {
        setText(problem, error.message);
        yes.disabled = false;
      }
    };
    const form = el('form', { onsubmit }, el('h2', { id }, title), content, problem, el('div', { class: 'actions' }, no, yes));
    const dialog = el('dialog', { 'aria-labelledby': id, oncancel: (event) => {
      event.preventDefault();
      end(null);
    } }, form);
    function end(value) {
      dialog.close();
      dialog.remove();
      resolve(value);
    }
    document.body.append(dialog);
    dialog.showModal();
    // Pressing Enter without reading must not destroy anything.
    if (isDangerous) no.focus();
  });
}

function input(field) {
  const id = nextId();
  const hint = field.hint && el('small', { id: `${id}-hint` }, field.hint);
  const common = { id, name: field.name, required: field.isRequired, 'aria-describedby': hint && `${id}-hint`, autocomplete: 'off' };
  let node;
  let read;
  if (field.kind === 'check') {
    node = el('input', { ...common, type: 'checkbox' });
    node.checked = Boolean(field.value);
    read = () => node.checked;
    return { row: el('div', { class: 'field check' }, node, el('label', { for: id }, field.label), hint), read };
  }
  if (field.kind === 'area') {
    node = el('textarea', { ...common, rows: field.rows ?? 6, spellcheck: 'false' });
    node.value = field.value ?? '';
    read = () => node.value;
  } else if (field.kind === 'choice') {
    node = el('select', common, field.options.map(([value, label, disabled]) => el('option', { value, disabled }, label)));
    node.value = field.value ?? field.options[0][0];
    read = () => node.value;
  } else if (field.kind === 'number') {
    node = el('input', { ...common, type: 'number', min: field.min ?? 0, max: field.max, step: '1' });
    node.value = field.value ?? '';
    read = () => (node.value === '' ? 0 : Number(node.value));
  } else {
    node = el('input', { ...common, type: 'text', spellcheck: 'false' });
    node.value = field.value ?? '';
    read = () => node.value.trim();
  }
  return { row: el('div', { class: 'field' }, el('label', { for: id }, field.label), node, hint), read };
}

function nextId() {
  names += 1;
  return `field-${names}`;
}
