/** Starts the console. */
import { QueryClientProvider } from "@tanstack/react-query";
import { RouterProvider } from "@tanstack/react-router";
import { createRoot } from "react-dom/client";
import { queryClient } from "./api/queries";
import { router } from "./router";
import "./styles.css";
import { startTheme } from "./ui/theme";
import { startLanguage } from "./words/language";

startTheme();
await startLanguage();
const root = document.getElementById("root");
if (root) {
  createRoot(root).render(
    <QueryClientProvider client={queryClient}>
      <RouterProvider router={router} />
    </QueryClientProvider>,
  );
}
