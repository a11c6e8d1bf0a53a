// Reads a resource again and again while the tab is visible, and says when what is shown is not current.
import { get, refused } from "./api.js";
import { useEffect, useState } from "./html.js";
import { announce } from "./parts.js";
import { frame } from "./stream.js";

const LONGEST = 30_000;
const NOTHING = { path: null, data: null, problem: null };

/**
 * Return {data, problem, stale} of a path. `every`: milliseconds between reads; a failed read doubles them, up to 30 s.
 * After a frame that `concerns` it, it is read earlier, at most four times as often.
 * After the path changes, `data` is that of the path before, marked as `stale`, until the first answer. Without a path it is null.
 */
export function useLive(path, { every = 4000, read = get, concerns = () => true } = {}) {
  const [state, setState] = useState(NOTHING);

  useEffect(() => {
    if (path === null) return setState(NOTHING);
    const stop = new AbortController();
    const apart = every / 4;
    let timer, pause = every, busy = false, failed = false, changed = false, last = -apart;

    const look = async () => {
      clearTimeout(timer);
      if (busy || document.hidden || stop.signal.aborted || refused.value) return;
      [busy, changed, last] = [true, false, performance.now()];
      try {
        const data = await read(path, { signal: stop.signal });
        if (stop.signal.aborted) return;
        if (failed) announce("The page is current again.");
        [pause, failed] = [every, false];
        setState({ path, data, problem: null });
      } catch (problem) {
        if (stop.signal.aborted || problem.name === "AbortError") return;
        if (!failed) announce(`${problem.title}. ${problem.remedy}`);
        [pause, failed] = [Math.min(pause * 2, LONGEST), true];
        setState((before) => ({ path, data: before.data, problem }));
      } finally {
        busy = false;
      }
      timer = setTimeout(look, changed && !failed ? apart : pause);
    };
    const soon = (found) => {
      if (found === null || !concerns(found)) return;
      changed = true;
      if (busy || failed) return;
      clearTimeout(timer);
      timer = setTimeout(look, Math.max(0, last + apart - performance.now()));
    };
    const seen = () => !document.hidden && look();

    const unsubscribe = frame.subscribe(soon);
    look();
    document.addEventListener("visibilitychange", seen);
    window.addEventListener("online", seen);
    return () => {
      stop.abort();
      clearTimeout(timer);
      unsubscribe();
      document.removeEventListener("visibilitychange", seen);
      window.removeEventListener("online", seen);
    };
  }, [path, every, refused.value]);

  const stale = state.data !== null && (state.path !== path || state.problem !== null);
  // A refusal of a new request is not about the old data.
  const data = state.problem && state.problem.status >= 400 && state.problem.status < 500 ? null : state.data;
  return { data, problem: state.path === path ? state.problem : null, stale };
}
