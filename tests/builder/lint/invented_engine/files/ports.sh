#!/bin/bash
acme up m/m --port 7001 &
acme up m/m --port 7001 &
