import { defineConfig } from "vitest/config";

// Tests and screenshots that drive the whole platform in a browser, one after the other.
export default defineConfig({
  test: {
    include: [process.env["CONSOLE_TESTS"] ?? "tests/*.browser.ts"],
    testTimeout: 90_000,
    hookTimeout: 240_000,
    fileParallelism: false,
    bail: 1,
  },
});
