package once_test

const workerVariable = "PGLOCK_TEST_ONCE_WORKER"

func work() int { return 0 }
