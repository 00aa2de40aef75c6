package child

import (
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"
)

// event is a message of a supervisor.
type event struct {
	kind  kind
	value int32
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
type link struct{ fd int }

// newLink returns one end, and the descriptor of the other end, which the next program inherits.
func newLink() (ours *link, theirs int, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, 0, err
	}
	// The descriptor keeps its number: any other number may be one that the command inherits.
	if _, err := unix.FcntlInt(uintptr(pair[1]), unix.F_SETFD, 0); err != nil {
		return nil, 0, errors.Join(err, unix.Close(pair[0]), unix.Close(pair[1]))
	}
	return &link{pair[0]}, pair[1], nil
}

// send sends an event. It drops the event if the other end is closed.
func (l *link) send(e event) {
	message := binary.NativeEndian.AppendUint32(nil, uint32(e.kind))
	message = binary.NativeEndian.AppendUint32(message, uint32(e.value))
	for {
		if _, err := unix.Write(l.fd, message); !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// receive waits for an event. It returns false when the process at the other end has ended.
func (l *link) receive() (e event, ok bool) {
	message := make([]byte, 8)
	for {
		n, err := unix.Read(l.fd, message)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil || n < len(message):
			return event{}, false
		default:
			return event{
				kind(binary.NativeEndian.Uint32(message)),
				int32(binary.NativeEndian.Uint32(message[4:])),
			}, true
		}
	}
}

func (l *link) close() { _ = unix.Close(l.fd) }
