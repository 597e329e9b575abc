/** Descriptions of operations of the timeline: tensor, bytes, speed, the rank that one waited for. */

import { grouped, number, size } from "../units.js";

/** @import {Open, Operation} from "./model.js" */

const LEAST = 10_000; // bytes: the speed of less has no meaning

/**
 * 12 us, 4.5 ms, 2.5 s.
 *
 * @param {number} micros
 */
export function span(micros) {
  if (micros >= 1e6) return `${Number((micros / 1e6).toPrecision(3))} s`;
  if (micros >= 1e3) return `${Number((micros / 1e3).toPrecision(3))} ms`;
  return `${Math.round(micros)} us`;
}

/**
 * @param {number} rank
 * @param {Operation} operation
 */
export function describe(rank, operation) {
  const { asked, agreed, begun, end, kind, name, how, tensors, bytes, merged, late, waited } = operation;
  const more = tensors > 1 ? ` and ${grouped(tensors - 1)} more` : "";
  const what =
    merged > 1 ? `${grouped(merged)} short operations, first '${name}'` : `${kind.toLowerCase()} '${name}'${more}`;
  const moved = end > begun && bytes >= LEAST ? `${number(bytes / (end - begun) / 1e3)} GB/s` : "";
  const parts = [
    `rank ${rank}: ${what}`,
    bytes >= 1000 ? size(bytes) : `${bytes} bytes`,
    merged > 1 ? "" : moved,
    `${span(end - asked)} in all`,
    merged > 1 || end <= begun
      ? ""
      : `transfer ${span(end - begun)}${how ? ` (${how.toLowerCase().replaceAll("_", " ")})` : ""}`,
    begun > agreed && merged === 1 ? `queue ${span(begun - agreed)}` : "",
    late >= 0 ? `waited ${span(waited)} for rank ${late}` : "",
  ];
  return parts.filter(Boolean).join(" · ");
}

/**
 * @param {number} rank
 * @param {Open} open
 * @param {number} now
 */
export function describeOpen(rank, [name, since, missing], now) {
  const ranks = `${missing.length === 1 ? "rank" : "ranks"} ${missing.join(", ")}`;
  return `rank ${rank}: ${name} for ${span(now - since)}${missing.length ? ` · waits for ${ranks}` : ""}`;
}
