// The one place that names the vendored modules.
import { h, render } from "./vendor/preact.js";
import htm from "./vendor/htm.js";

export { render };
export { useEffect, useMemo, useRef, useState } from "./vendor/hooks.js";
export { signal } from "./vendor/signals.js";

/** Builds nodes from a template: html`<p>${text}</p>`. Texts are never read as HTML. */
export const html = htm.bind(h);
