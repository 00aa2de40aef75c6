package leasetable

import (
	"crypto/rand"
	"encoding/hex"
)

// newRequest returns a random UUID (RFC 9562, version 4) as text. All attempts
// of one acquire carry the same, so that a repeated one is recognised.
func newRequest() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails, by its contract
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	var text [36]byte
	hex.Encode(text[:], b[:4])
	text[8] = '-'
	hex.Encode(text[9:], b[4:6])
	text[13] = '-'
	hex.Encode(text[14:], b[6:8])
	text[18] = '-'
	hex.Encode(text[19:], b[8:10])
	text[23] = '-'
	hex.Encode(text[24:], b[10:])
	return string(text[:])
}
