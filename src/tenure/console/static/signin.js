// The form that asks for a token. It is kept in this tab only, and sent as a bearer token.
import { get, keepToken, refused } from "./api.js";
import { html, useEffect, useRef, useState } from "./html.js";
import { Heading, ProblemBox } from "./parts.js";

/** `onSigned` is called with the answer to /meta, once a token is accepted. */
export function SignIn({ onSigned }) {
  const field = useRef(null);
  const [problem, setProblem] = useState(null);
  const [busy, setBusy] = useState(false);
  useEffect(() => field.current.focus(), []);

  const submit = async (event) => {
    event.preventDefault();
    const token = field.current.value.trim();
    setBusy(true);
    try {
      if (!/^[\x21-\x7e]+$/.test(token)) throw { title: "This is not a token", remedy: "enter the secret of your token" };
      const answer = await get("meta", { token });
      keepToken(token);
      onSigned(answer);
      refused.value = false;
    } catch (failure) {
      setProblem(failure);
      setBusy(false);
      field.current.select();
    }
  };

  return html`
    <${Heading}>Sign in<//>
    <p>This console needs a token. It is kept in this tab only, until you sign out or close the tab.</p>
    <form class="signin" onSubmit=${submit}>
      <label for="token">Token</label>
      <input id="token" ref=${field} type="password" autocomplete="current-password" spellcheck="false" required />
      <button type="submit" class="main-button" disabled=${busy}>Sign in</button>
    </form>
    ${problem && html`<${ProblemBox} problem=${problem.status === 401 ? WRONG : problem} />`}`;
}

const WRONG = {
  title: "The token is not valid",
  remedy: "enter the secret alone, which is the last part of NAME:ROLE:SECRET in the token file",
};
