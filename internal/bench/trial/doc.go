// Package trial measures rows. A row is a promise about speed or size: subjects that are measured, and
// targets that they must reach.
//
//	Prepare ── Open each subject ── warm up ──▶ round 1 … n ──▶ judge
//	                 │                             │
//	           not installed here:          many short turns per subject,
//	           reported as missing          each time in another order
//
// # Guarantees
//
// The subjects of a row take short turns, so that other work on the machine affects all of them alike.
// A round is many turns of each, and its figures cover all of them. A ratio is taken within a round.
// The median of the rounds is judged, so one disturbed round does not decide.
//
// A row with Throughput has one long turn per subject and round instead, whose beginning is not counted.
//
// A missing subject is reported with each target that needs it. It is never replaced by a figure from
// elsewhere.
//
// # Limits
//
// It can't make a busy machine quiet. It shows the range of the rounds beside each median, and marks
// unsteady figures. One round alone can't tell.
//
// # Failures
//
// An error of any subject ends the row, because half a row compares nothing. Everything that was
// opened is closed in reverse order in every case.
package trial
