import { defineConfig } from "vitest/config";

// Tests and screenshots that drive the whole platform in a browser, one after the other.
export default defineConfig({
  test: {
    include: [process.env["CONSOLE_TESTS"] ?? "tests/*.browser.ts"],
    testTimeout: 300_000,
    hookTimeout: 400_000,
    fileParallelism: false,
    bail: 1,
    retry: process.env["CI"] ? 1 : 0, // as .ci/pytest does; what passed only then is marked in the output
  },
});
