/** Tools above the lanes: legend, buttons, and downloads. */

import { h } from "../dom.js";
import { LEGEND } from "./layout.js";

export function makeTools() {
  const legend = h("div", { class: "hvd-lanes-legend" });
  for (const [kind, text] of Object.entries(LEGEND)) legend.append(h("span", { "data-kind": kind }, h("i"), text));
  const row = h("div", { class: "hvd-lanes-buttons", role: "group", "aria-label": "Timeline" });
  const root = h("div", { class: "hvd-lanes-tools" }, legend, row);
  /** @type {Map<string, HTMLElement>} */
  const buttons = new Map();
  return {
    root,
    /** @param {[text: string, hint: string, act: () => void][]} actions */
    fill(actions) {
      for (const [text, hint, act] of actions) {
        const made = h(
          "button",
          { type: "button", class: "hvd-tool", title: hint, "aria-label": `${text}: ${hint}` },
          text,
        );
        made.addEventListener("click", act);
        buttons.set(text, made);
        row.append(made);
      }
    },
    /**
     * @param {string} text
     * @param {boolean} pressed
     */
    press: (text, pressed) => buttons.get(text)?.setAttribute("aria-pressed", String(pressed)),
  };
}

/**
 * Save a file in the browser.
 *
 * @param {string} name
 * @param {Blob | null} blob
 */
export function download(name, blob) {
  if (!blob) return;
  const address = URL.createObjectURL(blob);
  h("a", { download: name, href: address }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

/**
 * Bind keys while an element has the focus.
 *
 * @param {HTMLElement} element
 * @param {Record<string, (event: KeyboardEvent) => void>} keys
 */
export function obeyKeys(element, keys) {
  element.addEventListener("keydown", (event) => {
    const act = keys[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation(); // else the notebook's shortcuts act
    act(event);
  });
}
