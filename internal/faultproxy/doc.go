// Package faultproxy is a TCP proxy that breaks the network between a client and a server, for tests
// of cut connections and lost replies.
//
//	client ── link ── Proxy ── link ── server
//
// A proxy listens on 127.0.0.1 and forwards every connection to its target. Its methods change that:
//
//	Cut          nothing passes in either direction: connections stay open, and new ones hang. As
//	             with TCP, data on its way arrives after Heal unless an end gave up before.
//	DropReplies  requests pass and replies are lost. A connection that lost one stays silent after
//	             Heal, because its stream has a hole.
//	HoldReplies  requests pass and replies arrive after Heal.
//	Freeze       the connections of this time stay open and silent forever. Later ones pass.
//	Sever        current connections are reset in both directions.
//	Refuse       new connections are closed at once.
//	Delay        everything arrives later, in each direction.
//	OnRequest    single requests of PostgreSQL's protocol lose their reply or arrive twice.
//
// Faults hold for current and new connections, and they combine. A fault is in force when its method
// returns: a byte that is sent after that meets it.
//
// The library github.com/Shopify/toxiproxy can't replace this package: removing its timeout toxic
// closes the connections instead of delivering what was on its way, and its reset_peer toxic resets
// a connection only when the next data arrives. A toxic also applies to all connections of a proxy,
// so a frozen connection can't stay silent while later ones pass.
package faultproxy
