// Polling: never twice at a time, and not while nobody looks.

/** Most of the time that answers may take: a slow gateway is asked less often. */
const SHARE = 1 / 40;

/** Call work now and *milliseconds* after it has ended or later, until signal is aborted. Its errors are its own. */
export function every(milliseconds, work, signal) {
  let timer = 0;
  let isRunning = false;
  const run = async () => {
    clearTimeout(timer);
    if (isRunning || signal.aborted || document.hidden) return;
    isRunning = true;
    const began = performance.now();
    try {
      await work();
    } finally {
      isRunning = false;
      if (!signal.aborted) timer = setTimeout(run, Math.max(milliseconds, (performance.now() - began) / SHARE));
    }
  };
  document.addEventListener('visibilitychange', run, { signal });
  signal.addEventListener('abort', () => clearTimeout(timer));
  run();
  return run;
}
