// The gateway as a whole, polled every two seconds while somebody is logged in. The last minutes are kept for the
// charts, where they are finer than the history.

import { look, readiness } from './api.js';
import { every } from './poll.js';

const EVERY_MS = 2000;
const KEPT_MS = 15 * 60_000;

/** What is known: overview and ready may be null; problem: why they are not newer. */
export const seen = { overview: null, ready: null, problem: '', at: 0, samples: [] };

/** Gets "seen" after each poll. */
export const watching = new EventTarget();

/** The gateway's clock, in microseconds since the epoch; this machine's before the first answer. */
export function gatewayTime() {
  if (!seen.overview) return Date.now() * 1000;
  return Math.round(seen.overview.started_at + seen.overview.uptime_s * 1e6 + (Date.now() - seen.at) * 1000);
}

/** Poll until signal is aborted. */
export function watch(signal) {
  seen.samples.length = 0;
  every(EVERY_MS, () => once(signal), signal);
}

async function once(signal) {
  const now = Date.now();
  // Readiness answers even while the gateway recovers or hangs, when the overview cannot.
  const [ready, overview] = await Promise.allSettled([readiness(signal), look('show-overview', {}, signal)]);
  if (signal.aborted) return;
  seen.ready = ready.status === 'fulfilled' ? ready.value : null;
  seen.problem = '';
  if (overview.status === 'fulfilled') {
    seen.overview = overview.value;
    seen.at = now;
    seen.samples.push({ at: now, overview: overview.value });
    while (seen.samples[0].at < now - KEPT_MS) seen.samples.shift();
  } else {
    seen.problem = overview.reason.message;
  }
  watching.dispatchEvent(new Event('seen'));
}
