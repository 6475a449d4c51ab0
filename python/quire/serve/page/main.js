// The page of `quire serve`: a tab to talk to the model, one to watch the engine. No framework, no build step: these
// files are what the browser runs.

import { Chat } from "./chat.js";
import { byId } from "./dom.js";
import { EngineView } from "./engine.js";
import { startTabs } from "./tabs.js";

const chat = new Chat();
const engine = new EngineView(() => chat.loadModels());
startTabs(document.querySelector("[role=tablist]"), (panel) => engine.setShown(panel === "panel-engine"));
chat.loadModels();
if (!byId("panel-chat").hidden && !matchMedia("(pointer: coarse)").matches) byId("prompt").focus();
