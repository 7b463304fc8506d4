// Elements are made only here. Data from the gateway becomes text, never HTML:
// the server's policy (Trusted Types) refuses innerHTML and the like anyway.

const SVG = 'http://www.w3.org/2000/svg';

/** An element; attributes that begin with "on" are listeners; null, undefined and false are left out. */
export function el(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** The same for SVG elements. */
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

/** Set a text only if it differs: screen readers and selections notice a change. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function button(label, onclick, attributes = {}) {
  return el('button', { type: 'button', onclick, ...attributes }, label);
}

/** A short label beside a name; its words distinguish it, not only its colour. */
export function tag(text, kind = '') {
  return el('span', { class: `tag ${kind}`.trim() }, text);
}

/** Terms and their values; pairs without a value are left out. */
export function facts(pairs, kind = '') {
  const shown = pairs.filter(([, value]) => ![null, undefined, false, ''].includes(value));
  return el('dl', { class: `facts ${kind}`.trim() }, shown.map(([term, value]) => el('div', {}, el('dt', {}, term), el('dd', {}, value))));
}
