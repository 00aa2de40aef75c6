// Package faultproxy stands between a client and a server and spoils the network, for tests of cut connections and
// lost replies.
//
//	client ── link ── Proxy ── link ── server
//
// A proxy listens on 127.0.0.1 and forwards every connection to its target, until it is told otherwise:
//
//	Cut          nothing passes in either direction, and nobody is told: connections stay open, new ones hang.
//	             As with TCP, what was on its way arrives after Heal, unless an end gave up before.
//	DropReplies  requests pass, replies are lost. A connection that lost one stays silent for good, also after Heal,
//	             since its stream has a hole.
//	Sever        current connections are reset, in both directions.
//	Refuse       new connections are closed at once.
//	Delay        everything arrives later, in each direction.
//
// Modes hold for current and new connections, and they add up. A mode is in force when its method returns: a byte
// that is sent after that meets it.
package faultproxy
