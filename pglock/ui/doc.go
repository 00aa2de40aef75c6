// Package ui is a web page for the operators of a program that uses pglock: who holds which lock
// and who waits, semaphores, elections, schedules, effects without an outcome, and the clients.
//
//	page, err := ui.Handler(client, ui.Options{Authorize: access, Actor: user})
//	mux.Handle("/locks/", http.StripPrefix("/locks", page))
//
// The pages are rendered on the server, from Client.Snapshot and Client.Get, and need neither a
// build step nor a script. With the small script that they bring along, an open page is updated by
// server-sent events.
//
//	/           the locks, with a filter        /once       effects of package once without an outcome
//	/lock       one lock: grants and queue      /clients    sessions and advisory locks
//	/waiting    the tree of who waits for whom  /doctor     the server, and the checks of Doctor
//	/permits    semaphores and readers–writer   /healthz    200, or 503 if the database does not answer
//	/elections  leaders and candidates          /release    POST: ask a holder to release its lock
//	/schedules  jobs with their ticks           /revoke     POST: end a grant
//	                                            /trigger    POST: run a job now
//
// # Security
//
// The function Authorize of the [Options] decides what each request may do. A proxy on the same
// machine that neither marks requests nor keeps their Host makes all of them local to
// [FromThisMachine], so use Authorize behind one.
//
// Actions are POST requests that [http.CrossOriginProtection] lets through. A browser says where a
// form comes from only over HTTPS and to localhost, and a form over plain HTTP to another host is
// refused. The holder sees the reason of an action, which ends with the actor, and the action is
// logged with both. Revoke asks for the name of the lock to be typed.
//
// The Content-Security-Policy allows no inline script or style and no frame. There are no cookies,
// and no headers for other origins. Names, holders and labels can be any text: characters that
// can't be seen, or that change how others are seen, are shown as Go writes them. Labels can hold
// secrets, which Label hides. /healthz answers all requests, with the reason only to those who may
// Read.
//
// # Load
//
// A page that is opened costs one Snapshot, or one Get for a lock. At most one is read at a time,
// and those who wait for the same page share it. The updates of all open pages together are read
// for at most 1 % of the time, and a hidden page is not updated. With 10,000 locks the list takes
// 0.1 s on a small machine, so it is updated every 10 s. A list shows 100 locks at a time.
//
// While the database does not answer, a page keeps what it had, gray, says since when, and tries
// again every few seconds. A request whose body does not arrive within 10 s is ended.
//
// Streams end when the viewer leaves, may no longer Read, or the server begins to shut down.
package ui
