/** Numbers and units as the table has them; tests/unit/widgets/test_page_modules.py holds Python to the same table. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { duration, grouped, metric, multiple, number, percent, rate, size, tick } from "../../../widgets/js/units.js";

const UNITS = { number, metric, percent, multiple, size, rate, duration };
const TABLE = JSON.parse(readFileSync(new URL("units.json", import.meta.url), "utf8"));

test("the table is about each unit", () => assert.deepEqual(Object.keys(TABLE), Object.keys(UNITS)));

for (const [name, says] of Object.entries(UNITS)) {
  test(`${name} says what the table has`, () => {
    for (const row of TABLE[name]) assert.equal(says(...row.slice(0, -1)), row.at(-1), `of ${row.slice(0, -1)}`);
  });
}

test("ticks have no zeros at their end", () => {
  assert.deepEqual([0, 0.5, 2, 2.5, 0.30000000000000004, 1500, 20000].map(tick), [
    "0",
    "0.5",
    "2",
    "2.5",
    "0.3",
    "1,500",
    "20,000",
  ]);
});

test("thousands are grouped", () => {
  assert.deepEqual(
    [0, 999, 1000, 1234567].map((value) => grouped(value)),
    ["0", "999", "1,000", "1,234,567"],
  );
});
