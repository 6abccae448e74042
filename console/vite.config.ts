import tailwindcss from "@tailwindcss/vite";
import react from "@vitejs/plugin-react";
import { defineConfig } from "vitest/config";

const api = process.env.VITRINA_URL ?? "http://127.0.0.1:8000";

export default defineConfig({
  base: "/ui/",
  plugins: [react(), tailwindcss()],
  build: {
    outDir: "../src/vitrina/api/console",
    emptyOutDir: true,
    target: "es2022",
    // The page's policy allows scripts from its own host only, and data: URLs are not that.
    assetsInlineLimit: 0,
    reportCompressedSize: false,
    chunkSizeWarningLimit: 900,
  },
  // `npm run dev` shows the platform of VITRINA_URL.
  server: { proxy: Object.fromEntries(["/api", "/health", "/version", "/docs"].map((path) => [path, api])) },
  test: { include: ["src/**/*.test.ts"] },
});
