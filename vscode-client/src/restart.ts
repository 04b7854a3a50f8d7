/** When to start again: at most one restart runs and one waits, and a server that keeps dying is left alone. */

/**
 * Wraps `work` so that calls during a run are answered by one further run after it. The returned promise settles when
 * a run that began after the call has ended.
 */
export function coalesced(work: () => Promise<void>): () => Promise<void> {
  let running: Promise<void> | undefined;
  let queued: Promise<void> | undefined;
  const begin = (): Promise<void> => {
    queued = undefined;
    running = work().finally(() => {
      running = undefined;
    });
    return running;
  };
  return () => {
    if (!running) {
      return begin();
    }
    queued ??= running.then(begin, begin);
    return queued;
  };
}

/** The promise's own result, or a rejection after `timeoutMs`; the work behind it goes on. */
export async function withTimeout<T>(promise: Promise<T>, timeoutMs: number): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const expiry = new Promise<never>((_, reject) => {
    timer = setTimeout(() => {
      reject(new Error(`no answer within ${timeoutMs / 1000} s`));
    }, timeoutMs);
  });
  try {
    return await Promise.race([promise, expiry]);
  } finally {
    clearTimeout(timer);
  }
}

/** Counts crashes within a sliding window of time. */
export class CrashBudget {
  #crashTimesMs: number[] = [];

  constructor(
    private readonly maxCrashes: number,
    private readonly windowMs: number,
  ) {}

  /** Notes a crash; false when there have been more than `maxCrashes` within the window. */
  allowsRestart(nowMs: number): boolean {
    this.#crashTimesMs = [...this.#crashTimesMs.filter((timeMs) => nowMs - timeMs < this.windowMs), nowMs];
    return this.#crashTimesMs.length <= this.maxCrashes;
  }
}
