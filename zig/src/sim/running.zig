//! An engine over one part on the simulated device, for tests.
const std = @import("std");
const search = @import("search");
const SimulatedDevice = @import("device.zig").SimulatedDevice;
const testing = std.testing;

pub const Engine = search.Engine(SimulatedDevice);

pub const Running = struct {
    engine: *Engine,
    part: *search.Part,

    pub fn init(shared: *const search.Shared, options: search.EngineOptions) !Running {
        const engine = try Engine.init(testing.allocator, shared, options);
        errdefer engine.deinit();
        return .{ .engine = engine, .part = try engine.attach(shared, .{ null, null }) };
    }

    /// What is under way ends.
    pub fn deinit(self: *const Running) void {
        self.part.closing.store(true, .seq_cst);
        self.engine.detach(self.part);
        self.engine.deinit();
    }
};

/// A job over one part, and who waits for its end.
pub const Call = struct {
    job: search.Job,
    part: search.JobPart,
    done: std.Thread.ResetEvent = .{},

    pub fn on_done(job: *search.Job) void {
        const self: *Call = @fieldParentPtr("job", job);
        self.done.set();
    }

    /// False where the engine is closing.
    pub fn submit(self: *Call, running: *const Running) bool {
        self.part.part = running.part;
        self.job.parts = (&self.part)[0..1];
        return running.engine.submit(&self.job);
    }
};
