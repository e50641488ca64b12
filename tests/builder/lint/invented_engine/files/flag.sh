#!/bin/bash
acme up m/m --most-reqests 4
