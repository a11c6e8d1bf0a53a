// Chooses the colours: those of the system, light or dark. theme.js reads the choice before the page is drawn.
import { html, useState } from "./html.js";

const KEY = "tenure.theme";

export function ThemeSwitch() {
  const [theme, setTheme] = useState(document.documentElement.dataset.theme ?? "system");
  const choose = (event) => {
    const chosen = event.target.value;
    setTheme(chosen);
    if (chosen === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = chosen;
    try {
      if (chosen === "system") localStorage.removeItem(KEY);
      else localStorage.setItem(KEY, chosen);
    } catch {
      // Storage is blocked: the choice holds until the page is left.
    }
  };
  return html`
    <label class="theme"><span>Theme</span>
      <select value=${theme} onChange=${choose}>
        ${["system", "light", "dark"].map((name) => html`<option key=${name} value=${name}>${name}</option>`)}
      </select>
    </label>`;
}
