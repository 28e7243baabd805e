//! What a folder must hold, for worlds in which several processes write to it: the rows after each change, what was acknowledged,
//! and what a crash may leave.
const std = @import("std");

/// Ids of a world are below this.
pub const slots = 192;
/// The value of each id's row; 0: it has none. No value is written twice.
pub const State = [slots]u16;
pub const call_max = 5;

/// Behind the last id that has a row.
pub fn rows_end(state: *const State) u64 {
    return if (std.mem.lastIndexOfNone(u16, state, &.{0})) |last| last + 1 else 0;
}

pub const Outcome = enum { done, duplicate, stale };

/// What a call asks for.
pub const Op = struct {
    kind: enum { insert, upsert, update, delete },
    /// The index gives the ids.
    is_numbered: bool = false,
    ids: []const i64,
    /// None where rows are deleted.
    values: []const u16 = &.{},
    /// Values of the rows that an update expects.
    expected: []const u16 = &.{},
    /// The first number, where it got them before.
    reserved: ?u64 = null,

    pub fn count(self: *const Op) usize {
        return if (self.is_numbered) self.values.len else self.ids.len;
    }

    /// Rows that it takes away or replaces.
    pub fn there(self: *const Op, state: *const State) u64 {
        var found: u64 = 0;
        if (!self.is_numbered) for (self.ids) |id| {
            found += @intFromBool(state[@intCast(id)] != 0);
        };
        return found;
    }

    pub fn outcome(self: *const Op, state: *const State) Outcome {
        return switch (self.kind) {
            .insert => if (self.there(state) > 0) .duplicate else .done,
            .update => for (self.ids, self.expected) |id, value| {
                if (state[@intCast(id)] != value) break .stale;
            } else .done,
            .upsert, .delete => .done,
        };
    }

    pub fn changes(self: *const Op, state: *const State) bool {
        if (self.outcome(state) != .done) return false;
        return self.kind != .delete or self.there(state) > 0;
    }

    /// The first number, where the index gives them, is `first`.
    pub fn after(self: *const Op, state: *const State, first: u64) State {
        var new = state.*;
        if (self.is_numbered) {
            @memcpy(new[@intCast(first)..][0..self.values.len], self.values);
        } else for (self.ids, 0..) |id, i| {
            new[@intCast(id)] = if (self.kind == .delete) 0 else self.values[i];
        }
        return new;
    }
};

/// A change, once it is written.
pub const Written = struct {
    /// The call returns, and others see it, only once it is on the device.
    waits: bool = false,
    /// The log that has it, and its end there.
    node: u32 = 0,
    end: u64 = 0,
    /// All numbers below were given to rows.
    next_row: u64,
};

const Entry = struct {
    /// What calls asked for as this change. Of those that failed any may be there after a crash; as long as nothing
    /// crashes the last one is what was written.
    states: std.ArrayList(State) = .empty,
    written: Written = .{ .next_row = 0 },
};

pub const Model = struct {
    allocator: std.mem.Allocator,
    entries: std.ArrayList(Entry) = .empty,
    /// The last change that was written.
    sequence: u64 = 0,
    acknowledged: u64 = 0,
    /// Acknowledged as durable.
    durable: u64 = 0,
    /// Known to be on the device as far as a caller waits for it.
    synced: u64 = 0,
    /// Numbers below were given, to rows or by a reservation.
    next_row: u64,

    pub fn init(allocator: std.mem.Allocator, state: *const State, next_row: u64) !Model {
        var self: Model = .{ .allocator = allocator, .next_row = next_row };
        try self.add_state(0, state);
        self.entries.items[0].written.next_row = next_row;
        return self;
    }

    pub fn deinit(self: *Model) void {
        for (self.entries.items) |*entry| entry.states.deinit(self.allocator);
        self.entries.deinit(self.allocator);
    }

    pub fn add_state(self: *Model, sequence: u64, state: *const State) !void {
        while (self.entries.items.len <= sequence) try self.entries.append(self.allocator, .{});
        try self.entries.items[@intCast(sequence)].states.append(self.allocator, state.*);
    }

    pub fn entry_at(self: *const Model, sequence: u64) *Entry {
        return &self.entries.items[@intCast(sequence)];
    }

    pub fn state_at(self: *const Model, sequence: u64) *const State {
        const states = self.entry_at(sequence).states.items;
        return &states[states.len - 1];
    }

    /// A crash leaves none of what comes after the last state.
    pub fn now(self: *const Model) *const State {
        return self.state_at(self.sequence);
    }

    pub fn write(self: *Model, state: *const State, written: Written) !void {
        const copy = state.*; // of one that the list may move
        self.sequence += 1;
        try self.add_state(self.sequence, &copy);
        self.next_row = @max(self.next_row, written.next_row);
        const entry = self.entry_at(self.sequence);
        entry.written = written;
        entry.written.next_row = @max(written.next_row, self.entry_at(self.sequence - 1).written.next_row);
    }

    /// A call that may have failed asked for this.
    pub fn may_become(self: *Model, state: *const State) !void {
        const copy = state.*;
        try self.add_state(self.sequence + 1, &copy);
    }

    /// Up to `sequence` changes were acknowledged, up to `durable` as durable.
    pub fn acknowledge(self: *Model, sequence: u64, durable: u64) void {
        self.acknowledged = @max(self.acknowledged, sequence);
        self.durable = @max(self.durable, durable);
    }

    fn check(self: *const Model, sequence: u64, state: *const State) !void {
        if (sequence >= self.entries.items.len) return error.NeverWritten;
        for (self.entry_at(sequence).states.items) |*one| if (std.mem.eql(u16, one, state)) return;
        return error.HalfThere;
    }

    /// The state after a call that was killed, or whose failure leaves its effect open. Returns whether its change is in it.
    pub fn see(self: *Model, sequence: u64, state: *const State, written: Written) !bool {
        if (sequence < self.sequence) return error.WrittenLost;
        if (sequence == self.sequence) return if (std.mem.eql(u16, self.now(), state)) false else error.HalfThere;
        if (sequence > self.sequence + 1) return error.NeverWritten;
        try self.check(sequence, state);
        try self.write(state, written);
        return true;
    }

    /// The state after a power cut: other futures are gone.
    pub fn settle(self: *Model, sequence: u64, state: *const State) !void {
        if (sequence < self.durable) return error.AcknowledgedLost;
        try self.check(sequence, state);
        while (self.entries.items.len > sequence + 1) {
            var last = self.entries.pop().?;
            last.states.deinit(self.allocator);
        }
        const entry = self.entry_at(sequence);
        const is_last = std.mem.eql(u16, self.state_at(sequence), state);
        self.next_row = if (is_last) entry.written.next_row else self.entry_at(sequence - 1).written.next_row;
        entry.written = .{ .next_row = self.next_row };
        entry.states.clearRetainingCapacity();
        entry.states.appendAssumeCapacity(state.*);
        self.sequence = sequence;
        self.acknowledged = sequence;
        self.durable = sequence;
        self.synced = sequence;
    }
};
