// Says what has changed to users of a screen reader, at most once per five seconds.
const APART = 5000;

let last = -APART;
let timer = null;

/** Say a text; of several within five seconds the last one is said. */
export function announce(text) {
  clearTimeout(timer);
  timer = setTimeout(
    () => {
      last = performance.now();
      document.getElementById("announcer").textContent = text;
    },
    Math.max(150, last + APART - performance.now()),
  );
}
