// A line chart of the last minutes, drawn as SVG, with its numbers in words beside it.

import { el, setText, svg } from './dom.js';
import { duration } from './format.js';

/** As far back as it goes; when less is known, as far as that, and a minute at least. */
const LONGEST_MS = 10 * 60_000;
const SHORTEST_MS = 60_000;
const WIDTH = 600;
const HEIGHT = 100;

export class Chart {
  /** series: [{name, value: sample => number}]; format: number => text. */
  constructor(title, series, format) {
    this.series = series;
    this.format = format;
    this.lines = series.map((_, index) => svg('path', { class: `line line-${index}`, 'vector-effect': 'non-scaling-stroke' }));
    this.top = el('span', { class: 'top' });
    this.values = series.map(() => el('b'));
    this.began = el('span');
    this.picture = svg('svg', { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: 'none', role: 'img', 'aria-label': title },
      svg('path', { class: 'grid', d: `M0 ${HEIGHT / 2}H${WIDTH}M0 ${HEIGHT}H${WIDTH}`, 'vector-effect': 'non-scaling-stroke' }), this.lines);
    const legend = series.map((item, index) => el('li', {}, el('i', { class: `swatch line-${index}`, 'aria-hidden': 'true' }), `${item.name} `, this.values[index]));
    this.element = el('figure', { class: 'chart card' },
      el('figcaption', {}, el('h2', {}, title), el('ul', { class: 'legend' }, legend)),
      el('div', { class: 'plot' }, this.top, this.picture),
      el('div', { class: 'axis', 'aria-hidden': 'true' }, this.began, el('span', {}, 'now')));
  }

  draw(samples, now = Date.now()) {
    const shown = samples.filter((sample) => sample.at >= now - LONGEST_MS);
    const length = Math.max(SHORTEST_MS, shown.length ? now - shown[0].at : 0);
    setText(this.began, `${duration(length / 1000)} ago`);
    const columns = this.series.map((item) => shown.map(item.value));
    const highest = niceCeiling(Math.max(0, ...columns.flat()));
    setText(this.top, this.format(highest));
    columns.forEach((column, index) => {
      const points = column.map((value, number) => {
        const x = WIDTH * (1 - (now - shown[number].at) / length);
        return `${x.toFixed(1)} ${(HEIGHT * (1 - value / highest)).toFixed(2)}`;
      });
      this.lines[index].setAttribute('d', points.length ? `M${points.join('L')}` : '');
      setText(this.values[index], column.length ? this.format(column.at(-1)) : '–');
    });
  }
}

/** The next of 1, 2, 5, 10, 20, … so that the scale seldom changes. */
function niceCeiling(value) {
  if (value <= 0) return 1;
  const size = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * size).find((step) => step >= value);
}
