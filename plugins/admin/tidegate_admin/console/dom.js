// Elements are made here and nowhere else. What comes from the gateway becomes text and never HTML:
// the server's policy (Trusted Types) refuses innerHTML and its like in any case.

const SVG = 'http://www.w3.org/2000/svg';

/** An element; attributes that begin with "on" are listeners, null, undefined and false are left out. */
export function el(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** The same of a picture's elements. */
export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? '' : String(value));
  }
  node.append(...children.flat(2).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** Change a text only when it is another one: screen readers and selections notice. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** A button. */
export function button(label, onclick, attributes = {}) {
  return el('button', { type: 'button', onclick, ...attributes }, label);
}

/** A short label beside a name, told from others by its words and not by colour alone. */
export function tag(text, kind = '') {
  return el('span', { class: `tag ${kind}`.trim() }, text);
}

/** Terms with what they mean; pairs without a value are left out. */
export function facts(pairs, kind = '') {
  const shown = pairs.filter(([, value]) => ![null, undefined, false, ''].includes(value));
  return el('dl', { class: `facts ${kind}`.trim() }, shown.map(([term, value]) => el('div', {}, el('dt', {}, term), el('dd', {}, value))));
}
