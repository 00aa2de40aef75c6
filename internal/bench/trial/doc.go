// Package trial measures rows: a row is a promise about speed or size, with the
// subjects that it is measured on and the targets that it must reach.
//
//	Prepare ── Open each subject ── warm up ──▶ round 1 … n ──▶ judge
//	                 │                             │
//	           not installed here:          many short turns of each subject,
//	           named as missing             another one first each time
//
// # What it guarantees
//
// The subjects of a row take short turns, so that what else happens on the machine hits
// all of them alike. A round is many turns of each; its figures are taken over
// all of them. A ratio is taken within a round, and the median of the rounds is judged,
// not the mean: one round that was disturbed does not decide.
//
// A subject that is not there is reported as missing, together with each target that
// needs it. It is never replaced by a figure from elsewhere.
//
// # What it does not
//
// It does not make a busy machine a quiet one. The range of a ratio over the rounds is
// shown beside its median, and where it is wide, that is said: measure again.
//
// # When things fail
//
// An error of any subject ends the row: half a round compares nothing. What was
// opened is closed in reverse order, also then.
package trial
