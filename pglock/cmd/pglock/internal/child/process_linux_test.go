package child

import (
	"os"
	"runtime"
	"sync"
	"syscall"
	"testing"
)

// TestCommandOutlivesOtherThreads: the kernel kills a command when the thread that
// started it ends, so no other goroutine may ever get that thread. One command
// after the other, each may be started on another thread.
func TestCommandOutlivesOtherThreads(t *testing.T) {
	path, err := Find("sleep")
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		p, err := Start(Command{Path: path, Args: []string{"sleep", "60"}, Env: os.Environ()})
		if err != nil {
			t.Fatal(err)
		}
		// While its stop waits to be told, the goroutine that waits for the command
		// is parked, and its thread would be free for others.
		if err := p.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		endThreads()
		if sig := <-p.Stopped(); sig != syscall.SIGSTOP {
			t.Errorf("stopped by %v", sig)
		}
		if err := p.Terminate(); err != nil {
			t.Fatal(err)
		}
		<-p.Done()
		if p.Status() != 128+int(syscall.SIGTERM) || !p.Signaled() || p.GroupAlive() {
			t.Errorf("status %d", p.Status())
		}
		p.Close()
	}
}

// endThreads takes the threads that are idle, and ends them.
func endThreads() {
	for range 10 {
		var others, taken sync.WaitGroup
		taken.Add(10)
		for range 10 {
			others.Go(func() {
				runtime.LockOSThread() // so that the thread ends with the goroutine
				taken.Done()
				taken.Wait()
			})
		}
		others.Wait()
	}
}
