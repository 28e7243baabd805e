//! What a folder may hold after a crash, for tests that do not know which of its writes came through.
const std = @import("std");

/// For each sequence the states that calls asked for, since of two that failed either may have left its record.
/// A `State` is an array of numbers.
pub fn Model(comptime State: type) type {
    return struct {
        allocator: std.mem.Allocator,
        states: std.ArrayList(std.ArrayList(State)) = .empty,
        /// Acknowledged as durable.
        durable: u64 = 0,
        /// Acknowledged, or read when it was opened.
        sequence: u64 = 0,

        const Self = @This();

        pub fn init(allocator: std.mem.Allocator) !Self {
            var self: Self = .{ .allocator = allocator };
            try self.add(0, @splat(0));
            return self;
        }

        pub fn deinit(self: *Self) void {
            for (self.states.items) |*one| one.deinit(self.allocator);
            self.states.deinit(self.allocator);
        }

        pub fn add(self: *Self, sequence: u64, state: State) !void {
            while (self.states.items.len <= sequence) try self.states.append(self.allocator, .empty);
            try self.states.items[@intCast(sequence)].append(self.allocator, state);
        }

        /// The last one: what is there as long as nothing crashes.
        pub fn now(self: *const Self) State {
            return self.states.items[@intCast(self.sequence)].getLast();
        }

        /// This is what was found: other futures are gone.
        pub fn settle(self: *Self, sequence: u64, state: State) !void {
            self.sequence = sequence;
            while (self.states.items.len > sequence + 1) {
                var last = self.states.pop().?;
                last.deinit(self.allocator);
            }
            self.states.items[@intCast(sequence)].clearRetainingCapacity();
            try self.add(sequence, state);
        }

        pub fn check(self: *const Self, sequence: u64, state: State) !void {
            return self.check_since(self.durable, sequence, state);
        }

        /// Checks a state that was read after change `durable` was acknowledged.
        pub fn check_since(self: *const Self, durable: u64, sequence: u64, state: State) !void {
            if (sequence < durable) return error.AcknowledgedLost;
            if (sequence >= self.states.items.len) return error.NeverWritten;
            for (self.states.items[@intCast(sequence)].items) |one| if (std.meta.eql(one, state)) return;
            return error.HalfThere;
        }
    };
}
