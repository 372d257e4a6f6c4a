/** Plays the log, one event after another. */

export class Player {
  /** @param {() => boolean} step goes on; false at the end @param {(playing: boolean) => void} onChange */
  constructor(step, onChange) {
    this.step = step;
    this.onChange = onChange;
    this.pace = 8; // events per second
    this.timer = 0;
  }

  flip() {
    if (this.timer) this.stop();
    else this.start();
  }

  start() {
    this.stop();
    this.timer = setInterval(() => this.step() || this.stop(), 1000 / this.pace);
    this.onChange(true);
  }

  stop() {
    if (!this.timer) return;
    clearInterval(this.timer);
    this.timer = 0;
    this.onChange(false);
  }

  /** @param {number} pace events a second */
  setPace(pace) {
    this.pace = pace;
    if (this.timer) this.start();
  }
}
