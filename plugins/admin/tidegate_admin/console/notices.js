// Passing notices: shown for some seconds, read out by screen readers.

import { button, el } from './dom.js';

const SHOWN_MS = 8000;
const AT_ONCE = 4;

const polite = el('div', { class: 'notices', role: 'status', 'aria-live': 'polite' });

/** Where they appear. */
export const notices = polite;

/** Report that something has happened. */
export function tell(text) {
  show(text, '');
}

/** Report that something went wrong; it stays until dismissed. */
export function complain(error) {
  show(error.message ?? String(error), 'bad');
}

function show(text, kind) {
  const notice = el('div', { class: `notice ${kind}`.trim() }, el('span', {}, text));
  const away = () => notice.remove();
  notice.append(button('×', away, { class: 'plain', 'aria-label': 'Dismiss' }));
  polite.append(notice);
  while (polite.children.length > AT_ONCE) polite.firstElementChild.remove();
  if (!kind) setTimeout(away, SHOWN_MS);
}
