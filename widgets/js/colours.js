/** Colours of the ranks, the same as in the picture (widgets/picture.py), and of the front end's theme. */

const FEW = ["#4c7bd9", "#e0803a", "#2f9e78", "#c9508c", "#8a6ad4", "#a98a1d", "#2b9fb5", "#d1555b"];

/**
 * Return a rank's colour: of a small palette, or of a ramp where there are many ranks.
 *
 * @param {number} index
 * @param {number} count how many ranks there are
 */
export function rankColour(index, count) {
  if (count <= FEW.length) return FEW[index];
  return `hsl(${Math.round(265 - (120 * index) / (count - 1))} 48% ${index % 2 ? 60 : 52}%)`;
}

/** @type {Record<string, string>} */
const MARKS = { died: "#d1555b", joined: "#2f9e78", left: "#7d8590", lost: "#b97c12" };

/**
 * Return the colour of a kind of mark, the same as in the picture.
 *
 * @param {string} kind
 */
export const markColour = (kind) => MARKS[kind] ?? MARKS.left;

/** @typedef {Record<"soft" | "grid" | "ink" | "paper" | "font", string>} Theme what a canvas, which has no style sheet, is drawn with */

const NAMES = ["soft", "grid", "ink", "paper", "compute", "wait", "negotiate", "late", "queue", "transfer"];

/**
 * Return the colours of the theme by their names in the style sheet, and the font; a canvas resolves no variables of it.
 *
 * @param {Element} root
 * @returns {Theme & Record<string, string>}
 */
export function readTheme(root) {
  const style = getComputedStyle(root);
  const probe = document.createElement("i");
  root.append(probe);
  const colours = NAMES.map((name) => {
    probe.style.color = `var(--hvd-${name})`;
    return [name, getComputedStyle(probe).color];
  });
  probe.remove();
  return { ...Object.fromEntries(colours), font: `11px ${style.fontFamily}` };
}
