// A message's body as JSON, text or hex. Whatever they hold, bodies only become text nodes.

import { button, el, setText } from '../../dom.js';
import * as format from '../../format.js';

const HEX_ROW = 16;
const HEX_BYTES = 64 * 1024;

/** The bytes of a base64 text. */
export function decoded(base64) {
  const text = atob(base64);
  return Uint8Array.from(text, (character) => character.charCodeAt(0));
}

/** Text, if the bytes are UTF-8 without control characters; otherwise null. A last character that was cut off is left out. */
export function textOf(bytes, isCut) {
  const decoder = new TextDecoder('utf-8', { fatal: true });
  let text;
  try {
    text = decoder.decode(bytes, { stream: isCut });
  } catch {
    return null;
  }
  // eslint-disable-next-line no-control-regex
  return /[\u0000-\u0008\u000e-\u001f]/.test(text) ? null : text;
}

/** Indented JSON, with numbers, escapes and repeated keys unchanged; null if it is not JSON. */
export function jsonOf(text) {
  if (!/^\s*[[{"]/.test(text)) return null;
  try {
    JSON.parse(text);
  } catch {
    return null;
  }
  const tokens = text.match(/"(?:[^"\\]|\\.)*"|[[\]{},:]|[^\s[\]{},:"]+/g);
  const parts = [];
  let level = 0;
  const line = () => parts.push('\n', '  '.repeat(level));
  tokens.forEach((token, index) => {
    const isEmpty = (token === '{' && tokens[index + 1] === '}') || (token === '[' && tokens[index + 1] === ']');
    const isEnd = token === '}' || token === ']';
    const wasEmpty = isEnd && (tokens[index - 1] === '{' || tokens[index - 1] === '[');
    if (isEnd && !wasEmpty) {
      level -= 1;
      line();
    }
    parts.push(token);
    if (token === ':') parts.push(' ');
    if (token === ',') line();
    if ((token === '{' || token === '[') && !isEmpty) {
      level += 1;
      line();
    }
  });
  return parts.join('');
}

/** Offset, bytes and characters, sixteen to a line. */
export function hexOf(bytes) {
  const lines = [];
  for (let first = 0; first < Math.min(bytes.length, HEX_BYTES); first += HEX_ROW) {
    const part = [...bytes.subarray(first, first + HEX_ROW)];
    const hex = part.map((byte) => byte.toString(16).padStart(2, '0')).join(' ').padEnd(HEX_ROW * 3 - 1);
    const characters = part.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : '.')).join('');
    lines.push(`${first.toString(16).padStart(8, '0')}  ${hex}  ${characters}`);
  }
  if (bytes.length > HEX_BYTES) lines.push(`… ${format.bytes(bytes.length - HEX_BYTES)} more`);
  return lines.join('\n');
}

/** One line of a body, for a list. */
export function glimpse(row) {
  if (row.problem) return row.problem;
  if (row.size === 0) return '(empty)';
  const bytes = decoded(row.body);
  const text = textOf(bytes, bytes.length < row.size);
  const shown = text === null ? hexOf(bytes.subarray(0, HEX_ROW)).slice(10, 10 + HEX_ROW * 3) : text.replace(/\s+/g, ' ').trim();
  return shown.slice(0, 160);
}

/** A body with a choice of views. */
export function bodyView(row) {
  const bytes = decoded(row.body);
  const isCut = bytes.length < row.size;
  const text = textOf(bytes, isCut);
  const json = text === null || isCut ? null : jsonOf(text);
  const views = [
    ['JSON', json], ['Text', text], ['Hex', () => hexOf(bytes)],
  ].filter(([, shown]) => shown !== null);
  const shown = el('pre', { class: 'body', tabindex: '0', 'aria-label': 'Body' });
  const buttons = views.map(([name, content], index) => button(name, () => choose(index, content), { 'aria-pressed': 'false' }));
  function choose(index, content) {
    setText(shown, typeof content === 'function' ? content() : content);
    buttons.forEach((item, number) => item.setAttribute('aria-pressed', String(number === index)));
  }
  if (row.size) choose(0, views[0][1]);
  return el('div', {},
    el('div', { class: 'actions' }, el('h3', {}, 'Body'), el('span', { class: 'quiet' }, format.bytes(row.size)), row.size > 0 && buttons),
    row.problem && el('p', { class: 'problem' }, row.problem),
    isCut && !row.problem && el('p', { class: 'quiet' }, `The first ${format.bytes(bytes.length)} are shown.`),
    row.size > 0 && shown);
}
