// Produce, fetch and subscribe over ZeroMQ, with go-zeromq/zmq4, which needs no libzmq. docs/zeromq.md describes what
// is sent.
//
//	go run . ipc:///run/appliance/zeromq TOPIC VALUE...
//	go run . --subscribe COUNT ipc:///run/appliance/zeromq TOPIC
//
// Either prints each record of partition 0 as `offset value`. The second prints records as they are committed, and
// ends after COUNT of them.
package main

import (
	"flag"
	"fmt"
	"os"
)

func produceAndFetch(s *session, topic string, values []string) error {
	if len(values) > 0 {
		if err := produce(s, topic, values); err != nil {
			return err
		}
	}
	for offset := int64(0); ; {
		records, err := fetch(s, topic, offset)
		if err != nil || len(records) == 0 {
			return err
		}
		for _, each := range records {
			fmt.Println(each.offset, string(each.value))
			offset = each.offset + 1
		}
	}
}

func printPushed(s *session, topic string, left int) error {
	go s.beat()
	for offset, isSubscribed := int64(0), false; left > 0; {
		if !isSubscribed {
			if err := s.subscribe(topic, offset); err != nil {
				return err
			}
			isSubscribed = true
		}
		push, err := s.join(kindPush)
		if err != nil {
			return err
		}
		if len(push) < 4 {
			return errShort
		}
		code, data, err := partition(push[4:], topic)
		if err != nil {
			return err
		}
		if code != 0 && !isRetriable(code) {
			return fmt.Errorf("push: Kafka's error %d", code)
		}
		isSubscribed = code == 0 // the topic is new and nobody leads it yet: the subscription has ended
		records, err := decodeBatches(data, offset)
		if err != nil {
			return err
		}
		for _, each := range records {
			if left == 0 {
				break
			}
			fmt.Println(each.offset, string(each.value))
			offset = each.offset + 1
			left--
		}
	}
	return nil
}

func run(count int, arguments []string) error {
	if len(arguments) < 2 {
		return fmt.Errorf("usage: %s [--subscribe COUNT] ENDPOINT TOPIC VALUE...", os.Args[0])
	}
	s, err := openSession(arguments[0])
	if err != nil {
		return err
	}
	if err := create(s, arguments[1]); err != nil {
		return err
	}
	if count > 0 {
		err = printPushed(s, arguments[1], count)
	} else {
		err = produceAndFetch(s, arguments[1], arguments[2:])
	}
	if err != nil {
		return err
	}
	return s.close()
}

func main() {
	count := flag.Int("subscribe", 0, "print so many records as they are committed")
	flag.Parse()
	if err := run(*count, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
