package main

import "syscall"

func workerAttr() *syscall.SysProcAttr { return nil }
