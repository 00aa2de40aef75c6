package child

import (
	"encoding/binary"
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// event is a message of a supervisor.
type event struct {
	Kind  kind
	Value int32
}

type kind int32

const (
	started             kind = iota // value: the command's process id
	startedInForeground             // the same, and the command's group is in the foreground
	failed                          // the command could not start; value: errno
	stopped                         // the command was stopped; value: the signal
	ended                           // the command has ended; value: the wait status
	treeEnded                       // no descendant is left
)

// link is one end of the socket between this process and a supervisor. The socket keeps message
// boundaries.
type link struct{ *os.File }

func newLink(fd int) link { return link{os.NewFile(uintptr(fd), "supervisor")} }

// newLinks returns one end, and the descriptor of the other end, which the next program inherits.
func newLinks() (ours link, theirs int, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return link{}, 0, err
	}
	// The descriptor keeps its number: any other number may be one that the command inherits.
	if _, err := unix.FcntlInt(uintptr(pair[1]), unix.F_SETFD, 0); err != nil {
		return link{}, 0, errors.Join(err, unix.Close(pair[0]), unix.Close(pair[1]))
	}
	return newLink(pair[0]), pair[1], nil
}

// send sends an event. It drops the event if the other end is closed.
func (l link) send(e event) { _ = binary.Write(l, binary.NativeEndian, e) }

// receive waits for an event. It returns false when the process at the other end has ended.
func (l link) receive() (e event, ok bool) {
	err := binary.Read(l, binary.NativeEndian, &e)
	return e, err == nil
}
