// Numbers, sizes and times as people read them.

const whole = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat('en', { maximumSignificantDigits: 3 });
const UNITS = ['', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];

export function count(value) {
  return whole.format(value);
}

/** A number with its noun: 1 message, 2 messages. */
export function counted(value, word) {
  return `${whole.format(value)} ${word}${value === 1 ? '' : 's'}`;
}

export function rate(value) {
  return value >= 100 ? whole.format(value) : short.format(value);
}

export function bytes(value) {
  let unit = 0;
  let number = value;
  while (number >= 1024 && unit < UNITS.length - 1) {
    number /= 1024;
    unit += 1;
  }
  return unit ? `${short.format(number)} ${UNITS[unit]}` : counted(number, 'byte');
}

export function milliseconds(value) {
  return value >= 1000 ? `${short.format(value / 1000)} s` : `${short.format(value)} ms`;
}

export function percent(share) {
  return `${whole.format(share * 100)} %`;
}

/** Seconds in their two largest units. */
export function duration(seconds) {
  const parts = [[86400, 'd'], [3600, 'h'], [60, 'min'], [1, 's']];
  const first = parts.findIndex(([size]) => seconds >= size);
  if (first < 0) return seconds > 0 ? milliseconds(seconds * 1000) : '0 s';
  let rest = Math.floor(seconds);
  const words = [];
  for (const [size, unit] of parts.slice(first, first + 2)) {
    const number = Math.floor(rest / size);
    rest -= number * size;
    if (number) words.push(`${number} ${unit}`);
  }
  return words.join(' ');
}

/** Microseconds since the epoch, as this machine's time. */
export function moment(microseconds) {
  return microseconds ? new Date(microseconds / 1000).toLocaleString(undefined, { dateStyle: 'medium', timeStyle: 'medium' }) : '';
}

/** The same, and how long ago that is. */
export function ago(microseconds) {
  if (!microseconds) return '';
  const seconds = Date.now() / 1000 - microseconds / 1e6;
  return seconds < 0 ? moment(microseconds) : `${duration(Math.max(seconds, 1))} ago`;
}
