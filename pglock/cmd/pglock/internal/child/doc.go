// Package child runs one command in a process group of its own, and passes
// signals to that group.
//
//	            Start
//	              │              Follow: this process stops as well
//	              ▼       stops  ┌──────────────────┐
//	           running ────────▶ stopped            │
//	              │  ▲           │  ◀───────────────┘ both are continued
//	              │  └─ Resume ──┘
//	              ▼
//	Done: Status is known; GroupAlive tells whether others of the group still run
//
// If this process is in the foreground of a terminal, the command's group takes
// its place there, so that it can read, and gets Ctrl-C and Ctrl-Z from the
// terminal. Behind or in front of a pipe that could take the terminal from the
// pipe's other end: there the command gets it when it first needs it.
//
// What ends the command when this process is killed: on Linux the kernel does, on
// Windows the end of the job object does, which holds its children too; elsewhere
// nothing does.
package child
