//! What a build tells and is told while it runs; shared between threads.
const std = @import("std");

pub const Stage = enum(i32) { scan = 0, encode = 1, graph = 2, place = 3, write = 4, commit = 5, done = 6 };

pub const Control = struct {
    stage: std.atomic.Value(i32) = .init(0),
    done: std.atomic.Value(u64) = .init(0),
    total: std.atomic.Value(u64) = .init(0),
    /// Where this build goes on from a killed one; `.scan` where it does not.
    resumed: std.atomic.Value(i32) = .init(0),
    resumed_done: std.atomic.Value(u64) = .init(0),
    canceled: std.atomic.Value(bool) = .init(false),

    pub fn enter(self: *Control, stage: Stage, total: u64) void {
        self.done.store(0, .monotonic);
        self.total.store(total, .monotonic);
        self.stage.store(@intFromEnum(stage), .release);
    }

    pub fn check(self: *const Control) error{Canceled}!void {
        if (self.canceled.load(.monotonic)) return error.Canceled;
    }
};
