// A line chart of the last minutes, hours or days, drawn as SVG, with its numbers as text beside it. Missing data is a gap.

import { el, setText, svg } from './dom.js';
import { bytes, duration } from './format.js';

const WIDTH = 600;
const HEIGHT = 100;
/** Share of the width that an arrow key moves by. */
const STRIDE = 1 / 60;

/** Points are {at, apart, …} with a number or null by column: points further apart than that have a gap between them. */
export class Chart {
  /** series: [{name, column}]; format: number => text. */
  constructor(title, series, format) {
    this.series = series;
    this.format = format;
    this.points = [];
    this.chosen = null;
    this.lines = series.map((_, index) => svg('path', { class: `line line-${index}`, 'vector-effect': 'non-scaling-stroke' }));
    this.cursor = svg('path', { class: 'cursor', 'vector-effect': 'non-scaling-stroke' });
    this.top = el('span', { class: 'top' });
    this.values = series.map(() => el('b'));
    this.began = el('span');
    this.middle = el('span');
    this.when = el('span', { class: 'when', role: 'status' });
    this.picture = svg('svg', {
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: 'none', role: 'img', tabindex: '0', 'aria-label': `${title}. Arrow keys show the values at a moment`,
      onpointermove: (event) => this.choose((event.clientX - this.picture.getBoundingClientRect().left) / this.picture.getBoundingClientRect().width),
      onpointerleave: () => this.choose(null), onblur: () => this.choose(null), onkeydown: (event) => this.press(event),
    }, svg('path', { class: 'grid', d: `M0 ${HEIGHT / 2}H${WIDTH}M0 ${HEIGHT}H${WIDTH}`, 'vector-effect': 'non-scaling-stroke' }), this.cursor, this.lines);
    const legend = series.map((item, index) => el('li', {}, el('i', { class: `swatch line-${index}`, 'aria-hidden': 'true' }), `${item.name} `, this.values[index]));
    this.element = el('figure', { class: 'chart card' },
      el('figcaption', {}, el('h2', {}, title), el('ul', { class: 'legend' }, legend)),
      el('div', { class: 'plot' }, this.top, this.picture),
      el('div', { class: 'axis' }, this.began, this.middle, el('span', {}, 'now'), this.when));
  }

  /** Show points, oldest first, from *begin* to *end*, milliseconds since the epoch. */
  draw(points, begin, end) {
    Object.assign(this, { points, begin, end });
    setText(this.began, `${duration((end - begin) / 1000)} ago`);
    setText(this.middle, `${duration((end - begin) / 2000)} ago`);
    const columns = this.series.map(({ column }) => column);
    const highest = niceCeiling(points.reduce((most, point) => columns.reduce((more, column) => Math.max(more, point[column] ?? 0), most), 0), this.format === bytes ? 1024 : 1000);
    setText(this.top, this.format(highest));
    const across = (at) => (WIDTH * (at - begin) / (end - begin)).toFixed(1);
    columns.forEach((column, index) => {
      let path = '';
      let before = null;
      for (const point of points) {
        const value = point[column];
        if (value === null || value === undefined) continue;
        const isApart = before === null || point.at - before.at > Math.max(point.apart, before.apart);
        // A single point is a line of no length, too: it is drawn as a dot.
        path += `${isApart ? 'M' : 'L'}${across(point.at)} ${(HEIGHT * (1 - value / highest)).toFixed(2)}${isApart ? 'h0' : ''}`;
        before = point;
      }
      this.lines[index].setAttribute('d', path);
    });
    this.tell();
  }

  /** Show the numbers of a moment: a share of the width, or null for now. */
  choose(share) {
    this.chosen = share === null ? null : Math.min(1, Math.max(0, share));
    this.tell();
  }

  press(event) {
    const stride = { ArrowLeft: -STRIDE, ArrowRight: STRIDE, Home: -1, End: 1 }[event.key];
    if (event.key === 'Escape') this.choose(null);
    if (!stride) return;
    event.preventDefault();
    this.choose((this.chosen ?? 1) + stride);
  }

  tell() {
    let point = this.points.at(-1);
    if (this.chosen !== null) {
      const at = this.begin + this.chosen * (this.end - this.begin);
      const nearest = this.points.reduce((best, one) => (!best || Math.abs(one.at - at) < Math.abs(best.at - at) ? one : best), null);
      point = nearest && Math.abs(nearest.at - at) <= Math.max(nearest.apart, (this.end - this.begin) * STRIDE) ? nearest : null;
    }
    this.cursor.setAttribute('d', this.chosen === null ? '' : `M${(WIDTH * this.chosen).toFixed(1)} 0V${HEIGHT}`);
    setText(this.when, this.chosen === null ? '' : point ? momentOf(point.at, this.end - this.begin) : 'no data for that time');
    this.series.forEach(({ column }, index) => {
      const value = point?.[column];
      setText(this.values[index], value === null || value === undefined ? '–' : this.format(value));
    });
  }
}

function momentOf(at, length) {
  const style = length > 86_400_000 ? { dateStyle: 'short', timeStyle: 'short' } : { timeStyle: 'medium' };
  return new Date(at).toLocaleString(undefined, style);
}

/** The next of 1, 2, 5, 10, 20, … so that the scale seldom changes. thousand: 1024 for binary units. */
function niceCeiling(value, thousand) {
  if (value <= 0) return 1;
  const size = thousand ** Math.floor(Math.log(value) / Math.log(thousand));
  return [1, 2, 5, 10, 20, 50, 100, 200, 500, thousand].map((step) => step * size).find((step) => step >= value) ?? value;
}
