// The gateway at a glance: readiness, rates, confirmations, backlog, and what is near its limit.

import { history, look } from '../api.js';
import { Chart } from '../chart.js';
import { button, el, facts, setText } from '../dom.js';
import * as format from '../format.js';
import { every } from '../poll.js';
import { columns } from './destinations/destinations.js';
import { Table } from '../table.js';
import { seen, watching } from '../watch.js';

const LARGEST = 5;
const LARGEST_EVERY_MS = 5000;
const NEAR = 0.7;
const AT = 0.9;
/** The server's names: [name, label, milliseconds]. */
const RANGES = [['15m', '15 min', 900_000], ['1h', '1 h', 3_600_000], ['24h', '24 h', 86_400_000], ['7d', '7 d', 604_800_000]];
const HISTORY_EVERY_MS = 30_000;
/** The page's own samples follow the history where its steps are this short; larger distances are gaps. */
const FINE_S = 10;
const SEEN_APART_MS = 15_000;
const APART_STEPS = 1.9;
/** Shorter spans are not stretched over the whole width. */
const SHORTEST_MS = 60_000;

export function show(root, place, signal) {
  let [range, , length] = RANGES.find(([name]) => name === place.query.get('range')) ?? RANGES[0];
  let past = [];
  let isFine = true;
  const readiness = el('ul', { class: 'conditions' });
  const tiles = TILES.map((tile) => new Tile(tile));
  const ranges = RANGES.map((item) => button(item[1], () => goBack(item), { 'aria-pressed': String(item[0] === range) }));
  const problem = el('p', { class: 'problem', role: 'alert' });
  const charts = CHARTS.map(({ title, series, unit }) => new Chart(title, series, unit));
  const rooms = el('tbody');
  const gateway = el('div');
  const largest = new Table({
    caption: 'Destinations with the largest backlog', columns: columns().slice(0, 4), key: (row) => row.destination,
    empty: 'There are no destinations yet. A queue exists from its first message on.',
  });
  root.append(el('h1', {}, 'Overview'), readiness,
    el('div', { class: 'tiles' }, tiles.map((tile) => tile.element)),
    el('div', { class: 'actions', role: 'group', 'aria-label': 'How far back the charts go' }, ranges), problem,
    el('div', { class: 'charts' }, charts.map((chart) => chart.element)),
    el('div', { class: 'columns' },
      el('section', { class: 'card' }, el('h2', {}, 'Room'), el('table', { class: 'rooms' },
        el('caption', { class: 'unseen' }, 'What is used, and its limit'), rooms)),
      el('section', { class: 'card' }, el('h2', {}, 'Largest backlogs'), largest.element,
        el('p', {}, el('a', { href: '#/destinations?sort=pending' }, 'All destinations'))),
      el('section', { class: 'card' }, el('h2', {}, 'Gateway'), gateway,
        el('p', {}, el('a', { href: '#/drain' }, 'Drain it before stopping it')))));

  function draw() {
    const { overview, ready, samples } = seen;
    readiness.replaceChildren(...conditions(ready));
    drawCharts(samples.map(pointOf));
    if (!overview) return;
    for (const tile of tiles) tile.update(overview);
    rooms.replaceChildren(...ROOMS.map(([name, of, unit]) => room(name, of(overview), unit)));
    gateway.replaceChildren(about(overview));
  }

  function drawCharts(fresh) {
    const points = isFine ? together(past, fresh) : past;
    const end = Date.now();
    const known = points.length ? end - points[0].at : 0;
    // The shortest range shows as much as is known; a day is always a day.
    const shown = range === RANGES[0][0] && known < length - SHORTEST_MS ? Math.max(SHORTEST_MS, known) : length;
    for (const chart of charts) chart.draw(points.filter(({ at }) => at >= end - shown), end - shown, end);
  }

  function goBack([name, , milliseconds]) {
    [range, length] = [name, milliseconds];
    ranges.forEach((item, index) => item.setAttribute('aria-pressed', String(RANGES[index][0] === name)));
    window.history.replaceState(null, '', `#/overview?range=${name}`);
    refresh();
  }

  watching.addEventListener('seen', draw, { signal });
  draw();
  const refresh = every(HISTORY_EVERY_MS, async () => {
    const wanted = range;
    try {
      const found = await history(wanted, signal);
      if (wanted !== range) {
        setTimeout(refresh);
        return;
      }
      problem.textContent = '';
      past = pointsOf(found);
      isFine = found.step_s <= FINE_S;
      draw();
    } catch (error) {
      if (!signal.aborted) problem.textContent = `The history is not available: ${error.message}.`;
    }
  }, signal);
  every(LARGEST_EVERY_MS, async () => {
    try {
      largest.update((await look('list-destinations', { sort: 'pending', limit: LARGEST }, signal)).rows);
    } catch {
      // The frame shows what is wrong.
    }
  }, signal);
}

function conditions(ready) {
  if (!ready) return [];
  const found = [];
  if (ready.phase !== 'running') found.push(['warn', `Not ready: ${ready.status}.`]);
  for (const problem of ready.problems) found.push(['bad', `Not ready: ${problem}.`]);
  for (const warning of ready.warnings) found.push(['warn', `Warning: ${warning}.`]);
  if (!found.length) found.push(['good', 'Ready: clients are let in, and what they send is confirmed.']);
  return found.map(([kind, text]) => el('li', { class: kind }, text));
}

class Tile {
  constructor({ title, value, more }) {
    this.read = [value, more];
    this.texts = [el('b'), el('small')];
    this.element = el('section', { class: 'tile card' }, el('h2', {}, title), this.texts);
  }

  update(overview) {
    this.read.forEach((read, index) => setText(this.texts[index], read(overview)));
  }
}

const traffic = (name, word) => ({
  title: `${word} a second`,
  value: (found) => format.rate(found[name].per_second),
  more: (found) => `${format.count(found[name].total)} since the start`,
});

const TILES = [
  traffic('published', 'Published'),
  traffic('delivered', 'Delivered'),
  traffic('acknowledged', 'Acknowledged'),
  {
    title: 'Wait for confirmation, p99',
    value: ({ confirmation }) => (confirmation.count ? format.milliseconds(confirmation.p99_ms) : '–'),
    more: ({ confirmation }) => (confirmation.count
      ? `p50 ${format.milliseconds(confirmation.p50_ms)}, ${format.count(confirmation.count)} in the last minute`
      : 'none in the last minute'),
  },
  {
    title: 'Backlog',
    value: (found) => format.count(found.backlog),
    more: (found) => `messages kept, in ${format.counted(found.queues, 'queue')} and ${format.counted(found.subscriptions, 'subscription')}`,
  },
  {
    title: 'Connections',
    value: (found) => format.count(found.connections.used),
    more: (found) => `${format.counted(found.sessions, 'session')}, ${format.count(found.dropped.total)} messages that reached no consumer`,
  },
];

const CHARTS = [
  { title: 'Messages a second', unit: format.rate, series: ['published', 'delivered', 'acknowledged'].map((name) => ({ name, column: name })) },
  {
    title: 'Wait for confirmation', unit: format.milliseconds,
    series: [{ name: 'p50', column: 'confirmation_p50_ms' }, { name: 'p99', column: 'confirmation_p99_ms' }],
  },
  { title: 'Backlog', unit: format.count, series: [{ name: 'messages', column: 'backlog' }] },
  {
    title: 'Memory', unit: format.bytes,
    series: [{ name: 'all', column: 'memory_bytes' }, { name: 'for clients', column: 'held_bytes' }, { name: 'in cursors', column: 'stored_memory_bytes' }],
  },
  { title: 'Store', unit: format.bytes, series: [{ name: 'on disk', column: 'store_bytes' }] },
  { title: 'Room on its disk', unit: format.bytes, series: [{ name: 'free', column: 'disk_free_bytes' }] },
];

/** The page's own sample, in the history's form. */
function pointOf({ at, overview }) {
  const { confirmation: waits } = overview;
  return {
    at,
    apart: SEEN_APART_MS,
    published: overview.published.per_second,
    delivered: overview.delivered.per_second,
    acknowledged: overview.acknowledged.per_second,
    confirmation_p50_ms: waits.count ? waits.p50_ms : null,
    confirmation_p99_ms: waits.count ? waits.p99_ms : null,
    backlog: overview.backlog,
    memory_bytes: overview.memory_bytes,
    held_bytes: overview.held.used,
    stored_memory_bytes: overview.stored_memory.used,
    store_bytes: overview.store.used,
    disk_free_bytes: overview.disk_free,
  };
}

/** All own samples, and the rest of the history. */
function together(past, fresh) {
  const stepOf = ({ at }) => Math.floor(at / 1000 / FINE_S);
  const seenIn = new Set(fresh.map(stepOf));
  return [...past.filter((point) => !seenIn.has(stepOf(point))), ...fresh].sort((a, b) => a.at - b.at);
}

/**
* Steps with a sample, each at its middle: the page's first own sample is at most one and a half steps after the last one,
 * which is no gap. A missing step makes neighbours two apart.
 */
function pointsOf({ step_s: step, first_at: first, series }) {
  const names = Object.keys(series);
  const now = Date.now();
  return series.backlog.map((_, index) => ({
    at: Math.min(now, first / 1000 + (index + 0.5) * step * 1000), apart: APART_STEPS * step * 1000, ...Object.fromEntries(names.map((name) => [name, series[name][index]])),
  })).filter(({ backlog }) => backlog !== null);
}

const ROOMS = [
  ['Store', (found) => found.store, format.bytes],
  ['Memory held for clients', (found) => found.held, format.bytes],
  ['Delivered and not acknowledged', (found) => found.in_flight, format.bytes],
  ['Cursors: messages that are stored', (found) => found.stored_memory, format.bytes],
  ['Cursors: messages that are not', (found) => found.unstored_memory, format.bytes],
  ['Temporary files of cursors', (found) => found.temporary, format.bytes],
  ['Connections', (found) => found.connections, format.count],
];

function room(name, { used, limit }, unit) {
  const share = limit ? used / limit : 0;
  const kind = share >= AT ? 'bad' : share >= NEAR ? 'warn' : '';
  const text = limit ? `${unit(used)} of ${unit(limit)}` : `${unit(used)}, no limit`;
  const bar = el('span', {
    class: `meter ${kind}`.trim(), role: 'meter', 'aria-label': name, 'aria-valuemin': '0', 'aria-valuemax': '100',
    'aria-valuenow': Math.min(100, Math.round(share * 100)), 'aria-valuetext': text,
  }, el('span'));
  bar.firstChild.style.width = `${Math.min(100, share * 100)}%`;
  return el('tr', {}, el('th', { scope: 'row' }, name), el('td', { class: 'number' }, text),
    el('td', { class: 'bar' }, limit > 0 && bar), el('td', { class: 'number' }, limit > 0 && format.percent(share)));
}

function about(found) {
  return facts([
    ['Listeners', found.listeners.length && el('ul', { class: 'plain' }, found.listeners.map((text) => el('li', {}, el('code', {}, text))))],
    ['Certificates', found.certificates.length && el('ul', { class: 'plain' }, found.certificates.map((one) => el('li', {}, el('code', {}, one.path), ` until ${format.moment(one.ends_at)}`)))],
    ['Version', found.version],
    ['Running for', format.duration(found.uptime_s)],
    ['Started', format.moment(found.started_at)],
    ['Disk', found.disk_free === null ? null : `${format.bytes(found.disk_free)} free`],
    ['Memory for messages', format.bytes(found.memory_bytes)],
    ['Store', el('code', {}, found.store_id)],
  ]);
}
